//! `status --map`, and the characters and colours of pictures.

use insta::assert_snapshot;

use testkit::{SMALL, Sim, assert_contains, plain};

#[test]
fn a_gpu_whose_parts_are_too_narrow_for_words_is_a_list() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = r#"
        [[gpu]]
        select = { all = true }
        devices = [ { profile = "1g", count = 7, name = "trainer-of-vision-{n}" } ]
    "#;
    sim.up(profile, &[]).ended(0);
    assert_snapshot!(plain(&sim.in_80_columns("status --map").stdout), @"
    profile profile.toml, applied N ago by USER

    GPU 0  NVIDIA A100-SXM4-80GB
      |1g   |1g   |1g   |1g   |1g   |1g   |1g   |.....|
      NAME                 PROFILE  STATE  CLIENTS  MEMORY      GIB
      trainer-of-vision-0  1g.10gb  ready  0        ----    0.0/9.5
      trainer-of-vision-1  1g.10gb  ready  0        ----    0.0/9.5
      trainer-of-vision-2  1g.10gb  ready  0        ----    0.0/9.5
      trainer-of-vision-3  1g.10gb  ready  0        ----    0.0/9.5
      trainer-of-vision-4  1g.10gb  ready  0        ----    0.0/9.5
      trainer-of-vision-5  1g.10gb  ready  0        ----    0.0/9.5
      trainer-of-vision-6  1g.10gb  ready  0        ----    0.0/9.5

    7 devices on 1 GPU: all ready, no clients, no problems.
    ");
    // Several compute instances of one GPU instance have one place.
    let profile = r#"
        [[gpu]]
        select = { all = true }
        devices = [ { profile = "3g", compute = ["1c", "2c"] } ]
    "#;
    sim.up(profile, &["--yes"]).ended(0);
    assert_snapshot!(plain(&sim.in_80_columns("status --map").stdout), @"
    profile profile.toml, applied N ago by USER

    GPU 0  NVIDIA A100-SXM4-80GB
      |3g.40gb                |.....|.....|.....|.....|
      NAME    PROFILE     STATE  CLIENTS  MEMORY                 GIB
      0.0.c0  2c.3g.40gb  ready  0        #---------------  0.1/39.2
      0.0.c1  1c.3g.40gb  ready  0        #---------------  0.1/39.2

    2 devices on 1 GPU: all ready, no clients, no problems.
    ");
}

#[test]
fn colours_are_for_terminals_that_have_them() {
    let sim = Sim::with("a100-80gb", 1);
    let path = sim.profile(SMALL);
    let typed = format!("plan {}", path.display());
    let map = |variables: &str| {
        let shown = sim.in_terminal(variables, &typed, 80).stdout;
        let line = shown.lines().find(|line| line.contains("then")).unwrap();
        (line.trim().to_owned(), shown.contains('\u{1b}'))
    };
    let plain = "|2g.20gb    |1g   |.....|.....|.....|.....|.....|  then";
    let in_colour = "|\u{1b}[32m2g.20gb    \u{1b}[0m|\u{1b}[36m1g   \u{1b}[0m|";
    for (variables, begins, is_coloured) in [
        ("TERM=xterm", in_colour, true),
        ("TERM=xterm NO_COLOR=1", plain, false),
        ("TERM=dumb", plain, false),
    ] {
        let (line, has_colours) = map(variables);
        assert!(line.starts_with(begins), "{variables}: {line}");
        assert_eq!(has_colours, is_coloured, "{variables}");
    }
    // What is not printed on a terminal is plain, unless colours are asked for.
    let mut piped = sim.command(&["plan", path.to_str().unwrap()]);
    let text = |output: std::process::Output| String::from_utf8(output.stdout).unwrap();
    let piped_text = text(piped.output().unwrap());
    assert_contains(&piped_text, plain);
    assert!(!piped_text.contains('\u{1b}'), "{piped_text}");
    let coloured = text(piped.env("CLICOLOR_FORCE", "1").output().unwrap());
    assert_contains(&coloured, "\u{1b}[32m+ create");
}

#[test]
fn a_plan_has_a_colour_for_each_sign() {
    let sim = Sim::small();
    let path = sim.profile(
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"2g\", mps = { active-thread-percentage = 50 } } ]\n",
    );
    let plan = format!("plan {}", path.display());
    let shown = sim.in_terminal("TERM=xterm", &plan, 120).stdout;
    for sign in ["\u{1b}[31m- destroy 1g", "\u{1b}[33m~ set 1 daemon"] {
        assert!(shown.contains(sign), "{sign}: {shown}");
    }
}

//! A full-screen view that is redrawn, and restores the terminal when it ends.

use std::io::{self, Write, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::Print;
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen,
};
use crossterm::{execute, queue};

use super::question::end_question;
use super::status::{self, Marks, View};
use crate::failure::ExitStatus;
use crate::node::Node;

/// True while the view has the terminal.
static IS_SCREEN_ACTIVE: AtomicBool = AtomicBool::new(false);

/// A full-screen view. Dropping it restores the terminal.
#[derive(Debug)]
pub struct Screen {
    marks: Marks,
    /// The first line that is shown if the text is longer than the screen.
    first: usize,
    text: String,
}

impl Screen {
    /// Takes the terminal. A panic restores it before its message is shown.
    pub fn enter() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore_terminal();
                before(panic);
            }));
        });
        IS_SCREEN_ACTIVE.store(true, Ordering::SeqCst);
        let screen = Self {
            marks: Marks::default(),
            first: 0,
            text: String::new(),
        };
        terminal::enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Shows the status of these devices under a head line, with changed lines marked.
    pub fn show_status(&mut self, head: &str, node: &Node, view: View<'_>) -> io::Result<()> {
        let (width, _) = terminal_size()?;
        self.marks.begin_turn();
        let marks = Some(&mut self.marks);
        let text = status::render(node, view, width.into(), marks);
        self.show_text(&format!("{head}\n\n{text}"))
    }

    /// Shows the reason why there is no new status.
    pub fn show_problem(&mut self, head: &str, trouble: &str) -> io::Result<()> {
        self.show_text(&format!("{head}\n\n{trouble}\n"))
    }

    fn show_text(&mut self, text: &str) -> io::Result<()> {
        text.clone_into(&mut self.text);
        self.draw()
    }

    /// Draws as much of the text as fits.
    fn draw(&mut self) -> io::Result<()> {
        let (width, height) = terminal_size()?;
        let room = usize::from(height.saturating_sub(1)).max(1);
        let lines: Vec<&str> = self.text.lines().collect();
        self.first = self.first.min(lines.len().saturating_sub(room));
        let mut out = stdout().lock();
        queue!(out, BeginSynchronizedUpdate, MoveTo(0, 0))?;
        for line in lines.iter().skip(self.first).take(room) {
            let line = console::truncate_str(line, width.into(), "…");
            queue!(
                out,
                Print(line),
                Clear(ClearType::UntilNewLine),
                Print("\r\n")
            )?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        let below = lines.len().saturating_sub(self.first + room);
        if below > 0 {
            queue!(out, Print(format!("… {below} more lines: arrow keys")))?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        out.flush()
    }

    /// Waits until then for a key that quits, and returns the exit status for it; other keys scroll.
    pub fn wait_for_key(&mut self, until: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !event::poll(left)? {
                return Ok(None);
            }
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        return Ok(Some(ExitStatus::Interrupted));
                    }
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(Some(ExitStatus::Done)),
                    KeyCode::Down | KeyCode::Char('j') => self.scroll(1)?,
                    KeyCode::Up | KeyCode::Char('k') => self.scroll(-1)?,
                    KeyCode::PageDown | KeyCode::Char(' ') => self.scroll(10)?,
                    KeyCode::PageUp => self.scroll(-10)?,
                    _ => {}
                },
                // The next status has the new size; until then the old one is cut.
                Event::Resize(..) => self.draw()?,
                _ => {}
            }
            if left == Duration::ZERO {
                return Ok(None);
            }
        }
    }

    fn scroll(&mut self, lines: isize) -> io::Result<()> {
        self.first = self.first.saturating_add_signed(lines);
        self.draw()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore_terminal();
    }
}

/// Restores the terminal if the view has it, and moves the cursor to the start of a line. Also called when the program
/// exits elsewhere.
pub fn restore_terminal() {
    end_question();
    if IS_SCREEN_ACTIVE.swap(false, Ordering::SeqCst) {
        // A failure cannot be reported, and the other half may still work.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = terminal::disable_raw_mode();
    }
}

/// Returns the terminal's columns and rows. A new pseudo-terminal without a size has 0 of both.
fn terminal_size() -> io::Result<(u16, u16)> {
    let (columns, rows) = terminal::size()?;
    Ok((
        if columns == 0 { 80 } else { columns },
        if rows == 0 { 24 } else { rows },
    ))
}

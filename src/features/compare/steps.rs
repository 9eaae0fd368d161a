use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar over steps that have words of their own. It shows on a terminal only.
#[derive(Debug)]
pub struct Steps {
    bar: ProgressBar,
}

impl Steps {
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::new(u64::try_from(steps).unwrap_or(u64::MAX));
        let form = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}");
        bar.set_style(form.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar }
    }

    /// Shows the step that begins.
    pub fn begin(&self, step: &str) {
        self.bar.set_message(step.to_owned());
    }

    pub fn end(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

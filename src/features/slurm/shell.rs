//! The simple commands of a shell script.

use std::iter::Peekable;
use std::str::Chars;

/// Returns the words of each simple command without quotes, comments and redirections, and whether it depends on the command
/// before it.
pub(super) fn parse_commands(text: &str) -> Vec<(Vec<String>, bool)> {
    let mut reader = ShellReader {
        signs: text.chars().peekable(),
        words: Vec::new(),
        word: None,
        is_conditional: false,
        is_target: false,
        here: None,
        commands: Vec::new(),
    };
    reader.read_script();
    reader.commands
}

struct ShellReader<'t> {
    signs: Peekable<Chars<'t>>,
    words: Vec<String>,
    /// The word that was begun.
    word: Option<String>,
    is_conditional: bool,
    /// True if the next word is a file of a redirection, or the end of a text in the script.
    is_target: bool,
    /// The line that ends the text behind this line; empty until it was read.
    here: Option<String>,
    commands: Vec<(Vec<String>, bool)>,
}

impl ShellReader<'_> {
    fn read_script(&mut self) {
        while let Some(sign) = self.signs.next() {
            match sign {
                '\\' => match self.signs.next() {
                    Some('\n') | None => {}
                    Some(sign) => self.push(sign),
                },
                '\'' => self.read_quoted('\''),
                '"' => self.read_quoted('"'),
                '#' if self.word.is_none() => {
                    while self.signs.next_if(|&sign| sign != '\n').is_some() {}
                }
                '\n' => {
                    self.end_command(false);
                    self.skip_here();
                }
                ' ' | '\t' | '\r' => self.end_word(),
                '<' | '>' => self.read_redirection(sign),
                '&' if self.signs.peek() == Some(&'>') => self.end_word(),
                ';' | '&' | '|' | '(' | ')' => {
                    let is_double = self.signs.next_if_eq(&sign).is_some();
                    self.end_command(sign == '|' || (sign == '&' && is_double));
                }
                sign => self.push(sign),
            }
        }
        self.end_command(false);
    }

    fn push(&mut self, sign: char) {
        self.word.get_or_insert_default().push(sign);
    }

    /// Reads up to the quote that ends what this one begins.
    fn read_quoted(&mut self, quote: char) {
        let mut text = String::new();
        while let Some(sign) = self.signs.next() {
            match sign {
                sign if sign == quote => break,
                '\\' if quote == '"' => text.extend(self.signs.next()),
                sign => text.push(sign),
            }
        }
        self.word.get_or_insert_default().push_str(&text);
    }

    fn read_redirection(&mut self, sign: char) {
        // The number of a file.
        if self
            .word
            .as_deref()
            .is_some_and(|word| word.chars().all(|sign| sign.is_ascii_digit()))
        {
            self.word = None;
        }
        self.end_word();
        let mut count = 1;
        while let Some(next) = self.signs.next_if(|next| "<>&|-".contains(*next)) {
            count += usize::from(next == sign);
        }
        self.is_target = true;
        if sign == '<' && count == 2 {
            self.here = Some(String::new());
        }
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else {
            return;
        };
        match &mut self.here {
            _ if !self.is_target => self.words.push(word),
            Some(end) if end.is_empty() => *end = word,
            _ => {}
        }
        self.is_target = false;
    }

    fn end_command(&mut self, decides_on_next: bool) {
        self.end_word();
        let words = std::mem::take(&mut self.words);
        if !words.is_empty() {
            self.commands.push((words, self.is_conditional));
        }
        self.is_conditional = decides_on_next;
    }

    /// Skips a text that the script gives to a command.
    fn skip_here(&mut self) {
        let Some(end) = self.here.take() else {
            return;
        };
        while self.signs.peek().is_some() {
            let line: String = self
                .signs
                .by_ref()
                .take_while(|&sign| sign != '\n')
                .collect();
            if line.trim_start_matches('\t') == end {
                break;
            }
        }
    }
}

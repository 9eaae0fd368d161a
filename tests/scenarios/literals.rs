//! The texts of messages in the sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// The shortest piece of text by which a message can be recognised.
const SHORTEST: usize = 5;

/// The longest piece of each message that is always the same, with the file that has it.
pub(crate) fn fixed_pieces(folder: &Path) -> BTreeMap<String, String> {
    let mut pieces = BTreeMap::new();
    collect(folder, "src", &mut pieces);
    assert!(pieces.len() > 100, "{pieces:#?}");
    pieces
}

fn collect(folder: &Path, shown: &str, pieces: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let shown = format!("{shown}/{name}");
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &shown, pieces);
        } else if entry.path().extension().is_some_and(|end| end == "rs") {
            let file = syn::parse_file(&fs::read_to_string(entry.path()).unwrap()).unwrap();
            let mut found = Found::default();
            found.visit_file(&file);
            let long = found.0.iter().map(|format| longest_piece(format));
            let long = long.filter(|piece| piece.len() >= SHORTEST);
            pieces.extend(long.map(|piece| (piece, shown.clone())));
        }
    }
}

/// The format strings of messages.
#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    /// Takes every text of a function that returns a hint.
    fn take_hint(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let name = signature.ident.to_string();
        if name == "hint" || name.ends_with("_hint") || name.starts_with("hint_") {
            Texts(self).visit_block(body);
        }
    }

    /// Takes the first string of an argument: a literal, or that of a `format!`.
    fn take(&mut self, argument: &syn::Expr) {
        match argument {
            syn::Expr::Lit(literal) => {
                if let syn::Lit::Str(text) = &literal.lit {
                    self.0.push(text.value());
                }
            }
            syn::Expr::Macro(call) => self.0.extend(first_string(&call.mac.tokens)),
            syn::Expr::Reference(reference) => self.take(&reference.expr),
            _ => {}
        }
    }
}

/// Every text in a function that returns a hint.
struct Texts<'a>(&'a mut Found);

impl Visit<'_> for Texts<'_> {
    fn visit_expr_match(&mut self, expression: &syn::ExprMatch) {
        // Patterns are no texts.
        self.visit_expr(&expression.expr);
        for arm in &expression.arms {
            self.visit_expr(&arm.body);
        }
    }

    fn visit_expr(&mut self, expression: &syn::Expr) {
        self.0.take(expression);
        visit::visit_expr(self, expression);
    }
}

impl Visit<'_> for Found {
    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        self.take_hint(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        self.take_hint(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_attribute(&mut self, attribute: &syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta
            && list.path.is_ident("error")
        {
            self.0.extend(first_string(&list.tokens));
        }
    }

    fn visit_expr_call(&mut self, call: &syn::ExprCall) {
        if let syn::Expr::Path(function) = &*call.func {
            let names: Vec<String> = function
                .path
                .segments
                .iter()
                .map(|one| one.ident.to_string())
                .collect();
            let is_error = match &names[..] {
                [.., of, name]
                    if ["new", "without_hint", "with_processes", "with_fault"]
                        .contains(&name.as_str()) =>
                {
                    ["CommandError", "Error", "FileError", "Problem"].contains(&of.as_str())
                }
                [.., name] => [
                    "command_error",
                    "usage_error",
                    "declined_by_user",
                    "other",
                    "file_error",
                    "refused",
                    "in_the_way",
                ]
                .contains(&name.as_str()),
                [] => false,
            };
            if is_error {
                call.args.iter().for_each(|argument| self.take(argument));
            }
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &syn::ExprMethodCall) {
        if ["context", "hint", "with_hint"]
            .iter()
            .any(|name| call.method == name)
        {
            call.args.iter().for_each(|argument| self.take(argument));
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        let is_error = ["bail", "anyhow", "ensure"]
            .iter()
            .any(|name| call.path.is_ident(name));
        if is_error {
            self.0.extend(first_string(&call.tokens));
        }
    }
}

fn first_string(tokens: &TokenStream) -> Option<String> {
    tokens.clone().into_iter().find_map(|token| match token {
        TokenTree::Literal(literal) => match syn::Lit::new(literal) {
            syn::Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

/// The longest piece of a format string between its placeholders and line ends.
fn longest_piece(format: &str) -> String {
    let mut pieces = vec![String::new()];
    let mut letters = format.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_double = matches!(letter, '{' | '}') && letters.next_if_eq(&letter).is_some();
        match letter {
            '{' if !is_double => {
                let _ = letters.by_ref().find(|letter| *letter == '}');
                pieces.push(String::new());
            }
            '\n' => pieces.push(String::new()),
            letter => pieces.last_mut().unwrap().push(letter),
        }
    }
    let longest = pieces.into_iter().max_by_key(|piece| piece.trim().len());
    longest.unwrap().trim().to_owned()
}

//! Tokens that `syn` leaves unparsed: the arguments of macros and attributes.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// A path in a token stream, such as `crate::host::Pid`, and what follows it.
#[derive(Debug)]
pub(crate) struct TokenPath {
    /// Its identifiers; a single one is no more than a name.
    pub(crate) segments: Vec<String>,
    /// It is called without arguments, and is no method.
    pub(crate) plain_call: bool,
    /// It is the name of a macro that is invoked.
    pub(crate) macro_name: bool,
}

/// Every path and every name in a token stream, at any depth.
pub(crate) fn paths(stream: TokenStream) -> Vec<TokenPath> {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => found.extend(paths(group.stream())),
            TokenTree::Ident(first) => {
                let method = at > 0 && is(&tokens[at - 1], '.');
                let mut segments = vec![first.to_string()];
                while let Some(next) = after_colons(&tokens[at + 1..]) {
                    segments.push(next);
                    at += 3;
                }
                let next = tokens.get(at + 1);
                found.push(TokenPath {
                    segments,
                    plain_call: !method && next.is_some_and(is_empty_call),
                    macro_name: next.is_some_and(|token| is(token, '!')),
                });
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        at += 1;
    }
    found
}

/// The identifier after a `::` at the start of these tokens.
fn after_colons(tokens: &[TokenTree]) -> Option<String> {
    match tokens {
        [
            TokenTree::Punct(one),
            TokenTree::Punct(two),
            TokenTree::Ident(name),
            ..,
        ] if one.as_char() == ':' && one.spacing() == Spacing::Joint && two.as_char() == ':' => {
            Some(name.to_string())
        }
        _ => None,
    }
}

fn is(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

fn is_empty_call(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group)
        if group.delimiter() == Delimiter::Parenthesis && group.stream().is_empty())
}

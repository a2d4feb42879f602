//! Finds what can be changed in a source: one change for each decision, number and step, and for some of them two.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit, Pat, Stmt, UnOp};

#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Which bytes of the source.
    pub(crate) at: Range<usize>,
    /// What it says there instead.
    pub(crate) to: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Expression,
    /// It is left out.
    Statement,
    /// An arm of a `match` that is passed over.
    Arm,
}

/// Constants of all files that are numbers or bytes, and what is there instead of each.
pub(crate) fn constants(paths: &[PathBuf]) -> Result<BTreeMap<String, String>, Box<dyn std::error::Error>> {
    let mut constants = BTreeMap::new();
    for path in paths {
        for item in syn::parse_file(&fs::read_to_string(path)?)?.items {
            let syn::Item::Const(it) = item else { continue };
            let name = it.ident.to_string();
            let to = match &*it.ty {
                syn::Type::Path(of) if of.path.is_ident("f64") => format!("({name} + 1.0)"),
                syn::Type::Path(of) if of.path.is_ident("usize") => format!("({name} + 1)"),
                syn::Type::Reference(_) => "&b\"something else\"[..]".to_owned(),
                _ => continue,
            };
            constants.insert(name, to);
        }
    }
    Ok(constants)
}

pub(crate) fn changes(text: &str, constants: &BTreeMap<String, String>) -> syn::Result<Vec<Change>> {
    let mut finder = Finder { text, constants, undefined: BTreeSet::new(), changes: Vec::new() };
    finder.visit_file(&syn::parse_file(text)?);
    Ok(finder.changes)
}

struct Finder<'a> {
    text: &'a str,
    constants: &'a BTreeMap<String, String>,
    /// Variables that get their value later: the compiler has to see that they do.
    undefined: BTreeSet<String>,
    changes: Vec<Change>,
}

impl Finder<'_> {
    fn text_of(&self, it: &impl Spanned) -> &str {
        &self.text[it.span().byte_range()]
    }

    fn change(&mut self, it: &impl Spanned, to: impl Into<String>) {
        self.changes.push(Change { at: it.span().byte_range(), to: to.into(), kind: Kind::Expression });
    }

    /// What is looked at is never so, or always.
    fn decide(&mut self, it: &Expr, as_what: &[bool]) {
        if !contains_let(it) {
            as_what.iter().for_each(|to| self.change(it, to.to_string()));
        }
    }

    fn binary(&mut self, it: &syn::ExprBinary) {
        let others: &[&str] = match it.op {
            BinOp::Lt(_) => &["<=", ">="],
            BinOp::Le(_) => &["<", ">"],
            BinOp::Gt(_) => &[">=", "<="],
            BinOp::Ge(_) => &[">", "<"],
            BinOp::Eq(_) => &["!="],
            BinOp::Ne(_) => &["=="],
            BinOp::Add(_) => &["-"],
            BinOp::Sub(_) => &["+"],
            BinOp::Mul(_) => &["/"],
            BinOp::Div(_) => &["*"],
            BinOp::BitOr(_) => &["&"],
            BinOp::Shl(_) => &[">>"],
            BinOp::And(_) => {
                [&it.left, &it.right].into_iter().for_each(|it| self.decide(it, &[true]));
                return;
            }
            BinOp::Or(_) => {
                [&it.left, &it.right].into_iter().for_each(|it| self.decide(it, &[false]));
                return;
            }
            _ => return,
        };
        let (left, right) = (self.text_of(&it.left).to_owned(), self.text_of(&it.right).to_owned());
        others.iter().for_each(|op| self.change(it, format!("{left} {op} {right}")));
    }

    fn method(&mut self, it: &syn::ExprMethodCall) {
        let receiver = self.text_of(&it.receiver).to_owned();
        let name = it.method.to_string();
        let whole = self.text_of(it).to_owned();
        let behind =
            whole[whole.len().min(it.method.span().byte_range().end - it.span().byte_range().start)..].to_owned();
        let other = match &*name {
            "min" => "max",
            "max" => "min",
            "any" if !it.args.is_empty() => "all",
            "all" if !it.args.is_empty() => "any",
            "first" => "last",
            "last" => "first",
            "rfind" => "find",
            "next_back" => "next",
            "is_some" => "is_none",
            "is_none" => "is_some",
            "is_some_and" => "is_none_or",
            "is_none_or" => "is_some_and",
            "saturating_add" => "saturating_sub",
            "saturating_sub" => "saturating_add",
            "is_ascii_digit" => "is_ascii_hexdigit",
            "is_ascii_hexdigit" => "is_ascii_alphanumeric",
            "is_ascii_alphanumeric" | "is_ascii_lowercase" => "is_ascii_alphabetic",
            _ => "",
        };
        match &*name {
            // Of what is there for this line only, both could not be kept.
            "first" | "last" if !matches!(*it.receiver, Expr::Path(_)) => {}
            _ if !other.is_empty() => self.change(it, format!("{receiver}.{other}{behind}")),
            "floor" => self.change(it, receiver),
            "text" => self.change(it, "None"),
            "pttl" | "ms" | "limit" => self.change(it, format!("({whole} + 1.0)")),
            "is_empty" | "starts_with" | "contains" | "exists" | "is_for" | "is_for_nobody" | "is_multiple_of" => {
                self.change(it, format!("!{whole}"));
            }
            "take" | "skip" if it.args.len() == 1 => {
                let arg = self.text_of(&it.args[0]).to_owned();
                self.change(&it.args[0], format!("{arg} + 1"));
            }
            _ => {}
        }
    }

    fn literal(&mut self, it: &syn::ExprLit) {
        let text = self.text_of(it).to_owned();
        match &it.lit {
            Lit::Int(_) => self.change(it, format!("{text} + 1")),
            Lit::Float(_) => self.change(it, format!("{text} + 1.0")),
            Lit::Bool(value) => self.change(it, (!value.value).to_string()),
            Lit::Byte(_) => self.change(it, "b'\\0'"),
            Lit::Str(_) => self.change(it, format!("{}!\"", &text[..text.len() - 1])),
            // Of the same length, which is part of its type.
            Lit::ByteStr(value) if !value.value().is_empty() => {
                let bytes = vec!["\\0"; value.value().len()].concat();
                self.change(it, format!("b\"{bytes}\""));
            }
            _ => {}
        }
    }

    /// Whether it may be left out.
    fn is_optional(&self, it: &Expr) -> bool {
        match it {
            Expr::Call(_) | Expr::MethodCall(_) | Expr::Try(_) | Expr::Break(_) | Expr::Continue(_) => true,
            Expr::Binary(it) => is_assignment(&it.op),
            Expr::Assign(it) => {
                let names = self.text_of(&it.left).to_owned();
                !names.split(|it: char| !it.is_alphanumeric() && it != '_').any(|it| self.undefined.contains(it))
            }
            _ => false,
        }
    }
}

fn is_assignment(op: &BinOp) -> bool {
    matches!(op, BinOp::AddAssign(_) | BinOp::SubAssign(_) | BinOp::BitOrAssign(_))
}

fn contains_let(it: &Expr) -> bool {
    match it {
        Expr::Let(_) => true,
        Expr::Binary(it) if matches!(it.op, BinOp::And(_)) => contains_let(&it.left) || contains_let(&it.right),
        _ => false,
    }
}

fn leaves_a_loop(it: &Stmt) -> bool {
    matches!(it, Stmt::Expr(Expr::Break(_) | Expr::Continue(_), _))
}

/// Whether a variable has no value any more behind this.
fn hands_on(it: &Stmt) -> bool {
    let Stmt::Expr(Expr::Assign(it), _) = it else { return false };
    matches!(&*it.right, Expr::Tuple(it) if it.elems.iter().any(|it| matches!(it, Expr::Path(_))))
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_expr(&mut self, it: &'ast Expr) {
        match it {
            Expr::Binary(it) => self.binary(it),
            Expr::MethodCall(it) => self.method(it),
            Expr::Lit(it) => self.literal(it),
            Expr::Unary(it) if matches!(it.op, UnOp::Not(_)) => {
                let inner = self.text_of(&it.expr).to_owned();
                self.change(it, inner);
            }
            Expr::If(it) => self.decide(&it.cond, &[true, false]),
            Expr::While(it) => self.decide(&it.cond, &[false]),
            Expr::Path(it) => {
                if let Some(to) = it.path.get_ident().and_then(|it| self.constants.get(&it.to_string())).cloned() {
                    self.change(it, to);
                } else if self.text_of(it) == "f64::INFINITY" {
                    self.change(it, "0.0");
                }
            }
            Expr::Call(it) => match self.text_of(&it.func) {
                "Some" if !matches!(it.args.first(), Some(Expr::Reference(_))) => self.change(it, "None"),
                "read_reservation" => self.change(it, "Reserved::NONE"),
                "Reply::number" => {
                    let arg = self.text_of(&it.args).to_owned();
                    self.change(&it.args, format!("{arg} + 1.0"));
                }
                "Reply::numbers" => {
                    let Some(Expr::Array(array)) = it.args.first() else { return };
                    for number in array.elems.iter().filter(|it| !matches!(it, Expr::Lit(_))) {
                        let text = self.text_of(number).to_owned();
                        self.change(number, format!("{text} + 1.0"));
                    }
                }
                _ => {}
            },
            Expr::Match(it) => {
                let is_total = it.arms.last().is_some_and(|it| matches!(it.pat, Pat::Wild(_)) && it.guard.is_none());
                for arm in &it.arms {
                    if let Some((_, guard)) = &arm.guard {
                        self.decide(guard, &[true, false]);
                    } else if is_total && !matches!(arm.pat, Pat::Wild(_)) {
                        let end = arm.pat.span().byte_range().end;
                        self.changes.push(Change { at: end..end, to: " if".to_owned(), kind: Kind::Arm });
                    }
                }
            }
            _ => {}
        }
        match it {
            // A place is no value.
            Expr::Assign(it) => self.visit_expr(&it.right),
            Expr::Binary(it) if is_assignment(&it.op) => self.visit_expr(&it.right),
            Expr::Repeat(it) => self.visit_expr(&it.expr),
            Expr::Struct(_) | Expr::Field(_) | Expr::Path(_) => visit::visit_expr(self, it),
            _ => visit::visit_expr(self, it),
        }
    }

    fn visit_block(&mut self, it: &'ast syn::Block) {
        for (i, stmt) in it.stmts.iter().enumerate() {
            let before = i.checked_sub(1).and_then(|it_| it.stmts.get(it_));
            if matches!(stmt, Stmt::Expr(Expr::Break(_), _)) && before.is_some_and(hands_on) {
                continue;
            }
            self.visit_stmt(stmt);
        }
    }

    fn visit_stmt(&mut self, it: &'ast Stmt) {
        let is_left_out = match it {
            Stmt::Expr(expr, Some(_)) => self.is_optional(expr),
            Stmt::Local(local) => matches!(local.pat, Pat::Wild(_)),
            _ => false,
        };
        if is_left_out {
            self.changes.push(Change { at: it.span().byte_range(), to: String::new(), kind: Kind::Statement });
        }
        visit::visit_stmt(self, it);
    }

    fn visit_local(&mut self, it: &'ast syn::Local) {
        if it.init.is_none() {
            let name = self.text_of(&it.pat).to_owned();
            self.undefined.insert(name);
        }
        match &it.init {
            // What is behind `else` has to leave.
            Some(syn::LocalInit { expr, diverge: Some((_, other)), .. }) => {
                self.visit_expr(expr);
                if !matches!(&**other, Expr::Block(it) if it.block.stmts.iter().any(leaves_a_loop)) {
                    self.visit_expr(other);
                }
            }
            _ => visit::visit_local(self, it),
        }
    }

    fn visit_macro(&mut self, it: &'ast syn::Macro) {
        let whole = self.text_of(it).to_owned();
        match it.path.get_ident().map(ToString::to_string).as_deref() {
            Some("matches") => self.change(it, format!("!{whole}")),
            Some("format") => {
                if let Some(rest) = whole.strip_prefix("format!(\"") {
                    self.change(it, format!("format!(\"!{rest}"));
                }
            }
            _ => {}
        }
    }

    fn visit_arm(&mut self, it: &'ast syn::Arm) {
        // Not its pattern.
        it.guard.iter().for_each(|it| self.visit_expr(&it.1));
        self.visit_expr(&it.body);
    }

    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
}

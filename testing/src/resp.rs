//! What a server reads and writes: commands, and messages that answer nothing.

use crate::store::Reply;

/// A longer command is none of ours.
const COMMAND_MAX: usize = 16 << 20;

/// What came is no command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoCommand;

/// A message that answers nothing, with a number at its end if there is one.
pub fn push<const N: usize>(
    out: &mut Vec<u8>,
    resp3: bool,
    parts: [&[u8]; N],
    number: Option<usize>,
) {
    let count = N.saturating_add(usize::from(number.is_some()));
    out.extend_from_slice(format!("{}{count}\r\n", if resp3 { '>' } else { '*' }).as_bytes());
    parts
        .iter()
        .for_each(|it| Reply::bulk(it).write_to(out, resp3));
    out.extend(
        number
            .into_iter()
            .flat_map(|it| format!(":{it}\r\n").into_bytes()),
    );
}

/// A command's name and arguments.
pub type Command = Vec<Vec<u8>>;

/// The first command in `bytes`, if it is complete, and its length; an error if it is no command.
pub fn parse(bytes: &[u8]) -> Result<Option<(Command, usize)>, NoCommand> {
    let mut rest = bytes;
    let Some(count) = number(&mut rest, b'*')? else {
        return Ok(None);
    };
    let mut command = Vec::new();
    for _ in 0..count {
        let Some(len) = number(&mut rest, b'$')? else {
            return Ok(None);
        };
        let Some((arg, behind)) = rest.split_at_checked(len) else {
            return Ok(None);
        };
        let Some((_, behind)) = behind.split_at_checked(2) else {
            return Ok(None);
        };
        command.push(arg.to_vec());
        rest = behind;
    }
    Ok(Some((command, bytes.len().saturating_sub(rest.len()))))
}

/// A line with a sign and a number.
fn number(rest: &mut &[u8], sign: u8) -> Result<Option<usize>, NoCommand> {
    let Some(end) = rest.windows(2).position(|it| it == b"\r\n") else {
        return if rest.len() < 32 {
            Ok(None)
        } else {
            Err(NoCommand)
        };
    };
    let (line, behind) = rest.split_at_checked(end).ok_or(NoCommand)?;
    let digits = line
        .strip_prefix(&[sign])
        .and_then(|it| std::str::from_utf8(it).ok())
        .ok_or(NoCommand)?;
    let number = digits
        .parse()
        .ok()
        .filter(|it| *it <= COMMAND_MAX)
        .ok_or(NoCommand)?;
    *rest = behind.get(2..).unwrap_or_default();
    Ok(Some(number))
}

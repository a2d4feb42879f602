//! What is different in each session, replaced by what is always the same.

/// Processes, as they are called on the servers.
const PROCESSES: [&str; 3] = ["web-3/4711", "web-1/3807", "web-2/529"];
/// The first fencing token; each that comes later is larger by this.
const TOKEN: u64 = 1_795_327_766_569_034;
const LATER: u64 = 52_417_209;
/// Digits of a token.
const TOKEN_DIGITS: usize = 16;
/// Times, by what stands before them, and another one for whatever else.
const TIMES: [(&str, &str); 3] = [
    ("waiting for", "1.0 s"),
    ("another", "27.3 s"),
    ("after", "3.2 s"),
];
const TIME: &str = "2.1 s";
const UNITS: [&str; 6] = ["ms", "s", "s,", "min", "min,", "h"];
/// Columns in which nothing but a time stands, or a version.
const COLUMNS: [(&str, &str); 4] = [
    ("UP", "26 h"),
    ("ANSWERS IN", "0.4 ms"),
    ("LEFT", "27.3 s"),
    ("VERSION", "Redis 7.2.5"),
];

/// What the first line of a table begins with.
const TABLE: &str = " NODE ";

pub(crate) struct Constant {
    addresses: Vec<String>,
    processes: Vec<String>,
    tokens: Vec<String>,
}

impl Constant {
    pub(crate) fn new(addresses: Vec<String>) -> Constant {
        Constant {
            addresses,
            processes: Vec::new(),
            tokens: Vec::new(),
        }
    }

    pub(crate) fn text(&mut self, text: &str) -> String {
        let mut done: Vec<String> = Vec::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            if line.starts_with(TABLE) {
                let mut rows = vec![line];
                rows.extend(std::iter::from_fn(|| {
                    lines.next_if(|it| it.starts_with(" n"))
                }));
                done.extend(self.table(&rows));
                continue;
            }
            let line = self.line(line);
            // Who waits for longer is told again: on a slow machine.
            let is_notice =
                |it: &String| it.starts_with("quorlock: ") && it.contains(": waiting for ");
            let is_again = is_notice(&line) && done.last().is_some_and(is_notice);
            if !is_again {
                done.push(line);
            }
        }
        done.iter().flat_map(|it| [it.as_str(), "\n"]).collect()
    }

    /// A table: its columns are as wide as what stands in them afterwards.
    fn table(&mut self, rows: &[&str]) -> Vec<String> {
        let header = rows[0];
        let begins: Vec<usize> = columns(header).map(|(at, _)| at).collect();
        let cell = |row: &str, column: usize| {
            let end = begins
                .get(column + 1)
                .copied()
                .unwrap_or(row.len())
                .min(row.len());
            row.get(begins[column].min(end)..end)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let mut cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| (0..begins.len()).map(|column| cell(row, column)).collect())
            .collect();
        let names = cells[0].clone();
        for row in &mut cells[1..] {
            for (it, name) in row.iter_mut().zip(&names) {
                let known = COLUMNS.iter().find(|(column, _)| column == name);
                *it = match known {
                    Some((_, constant)) if !it.is_empty() && it != "?" => (*constant).to_owned(),
                    _ => self.line(it),
                };
            }
        }
        let width = |column: usize| cells.iter().map(|it| it[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..begins.len()).map(width).collect();
        let padded = |row: &Vec<String>| {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(it, width)| format!(" {it:width$} "));
            cells.collect::<String>().trim_end().to_owned()
        };
        cells.iter().map(padded).collect()
    }

    /// A line, word by word.
    fn line(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let (mut done, mut at) = (Vec::new(), 0);
        while let Some(word) = words.get(at) {
            let unit = words
                .get(at + 1)
                .filter(|it| UNITS.contains(it) && is_number(word));
            if let Some(unit) = unit {
                let before = done.join(" ");
                let time = TIMES
                    .iter()
                    .find(|(it, _)| before.ends_with(it))
                    .map_or(TIME, |it| it.1);
                done.push(format!(
                    "{time}{}",
                    if unit.ends_with(',') { "," } else { "" }
                ));
                at += 2;
            } else {
                done.push(self.word(word));
                at += 1;
            }
        }
        done.join(" ")
    }

    fn word(&mut self, word: &str) -> String {
        let bare = word.trim_matches(|it: char| !it.is_ascii_alphanumeric());
        let Some(begin) = word.find(bare).filter(|_| !bare.is_empty()) else {
            return word.to_owned();
        };
        let replaced = self.bare(bare);
        format!(
            "{}{replaced}{}",
            &word[..begin],
            &word[begin + bare.len()..]
        )
    }

    fn bare(&mut self, word: &str) -> String {
        if let Some(node) = self.addresses.iter().position(|it| it == word) {
            return format!("10.0.0.{}:6379", node + 1);
        }
        if word.len() == TOKEN_DIGITS && word.bytes().all(|it| it.is_ascii_digit()) {
            return (TOKEN + LATER * place(&mut self.tokens, word) as u64).to_string();
        }
        let mut parts = word.rsplitn(3, '/');
        if let (Some(label), Some(process), Some(host)) = (parts.next(), parts.next(), parts.next())
            && process.bytes().all(|it| it.is_ascii_digit())
        {
            let known = place(&mut self.processes, &format!("{host}/{process}"));
            return format!("{}/{label}", PROCESSES[known]);
        }
        word.to_owned()
    }
}

/// Where it is among those that are known by now.
fn place(known: &mut Vec<String>, it: &str) -> usize {
    known
        .iter()
        .position(|known| known == it)
        .unwrap_or_else(|| {
            known.push(it.to_owned());
            known.len() - 1
        })
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|it| it.is_ascii_digit() || it == b'.')
}

/// The names of columns, which have two spaces between at least, and where they begin.
fn columns(header: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    header.split("  ").filter_map(move |part| {
        let begin = at + part.len() - part.trim_start().len();
        at += part.len() + 2;
        (!part.trim().is_empty()).then(|| (begin, part.trim()))
    })
}

#[test]
fn only_variable_text_of_a_session_is_replaced() {
    let mut constant = Constant::new(vec![
        "127.0.0.1:11026".to_owned(),
        "127.0.0.1:110".to_owned(),
    ]);
    let text = "\
$ quorlock status x
x: held by host.a/1/quorlock, for another 9 min unless that is extended
quorlock: x: waiting for 1.0 s, held by b/22/quorlock
quorlock: x: waiting for 16.2 s, for others that came first
quorlock: x: held with token 1795327766569000, after 1.5 s
quorlock: x: held with token 1795327766569001
n0 (127.0.0.1:11026): 2 of 3 servers vote
 NODE  ADDRESS          UP     LOCK              LEFT
 n0    127.0.0.1:11026  3.0 s  host.a/1/quorlock  9 min
 n1    127.0.0.1:110    ?      free
";
    let expected = "\
$ quorlock status x
x: held by web-3/4711/quorlock, for another 27.3 s unless that is extended
quorlock: x: waiting for 1.0 s, held by web-1/3807/quorlock
quorlock: x: held with token 1795327766569034, after 3.2 s
quorlock: x: held with token 1795327818986243
n0 (10.0.0.1:6379): 2 of 3 servers vote
 NODE  ADDRESS        UP    LOCK                 LEFT
 n0    10.0.0.1:6379  26 h  web-3/4711/quorlock  27.3 s
 n1    10.0.0.2:6379  ?     free
";
    let text = text.replace("LOCK              LEFT", "LOCK               LEFT");
    assert_eq!(constant.text(&text), expected);
}

//! Clients that do whatever they like, one command after the other.

use std::time::Duration;

use fastrand::Rng;

use crate::locks::{At, OURS, SHARED, for_several, reader};
use crate::pair::{Answer, GONE, LISTENING, Pair};
use crate::{Command, command, shapes};

const COMMANDS: usize = 50;

/// What was said at what time, and what the server has answered.
pub(crate) type Said = (Duration, Command, Answer);

/// Runs so many sequences of random commands on both, and compares after each command.
pub(crate) fn random(pair: &mut Pair, sequences: u64) -> Result<Vec<Vec<Said>>, Box<dyn std::error::Error>> {
    let mut all = Vec::new();
    for seed in 0..sequences {
        let mut random = Rng::with_seed(seed);
        let mut said = vec![both(pair, command(["FLUSHALL"]), &format!("sequence {seed}"))?];
        for number in 0..COMMANDS {
            if random.u8(0..4) == 0 {
                let by = [1, 300, 700, 1_000, 1_001, 11_000][random.usize(0..6)];
                pair.let_time_pass(Duration::from_millis(by))?;
            }
            let next = Step { pair, random: &mut random }.command();
            said.push(both(pair, next, &format!("sequence {seed}, command {number}"))?);
        }
        all.push(said);
    }
    Ok(all)
}

/// Runs each script on locks that end in this millisecond, again in the same and in the next, and a good while later.
pub(crate) fn ending(pair: &mut Pair) -> Result<Vec<Vec<Said>>, Box<dyn std::error::Error>> {
    let mut all = Vec::new();
    for shape in shapes::all(pair.now()) {
        for (value, reader) in [(OURS, OURS), ("somebody else", OURS), (SHARED, OURS), (SHARED, "somebody else")] {
            let score = (pair.now().as_millis() + 20).to_string();
            let mut steps = vec![command(["FLUSHALL"])];
            let locks = shape.keys.iter().filter(|it| it.starts_with("lock") || it.starts_with("slot"));
            steps.extend(locks.map(|it| command(["SET", it, value, "PX", "20"])));
            if value != reader {
                steps.extend([command(["DEL", "slot2"]), command(["ZADD", "slot2", "1", "x"])]);
            }
            let counters = shape.keys.iter().filter(|it| it.starts_with("fence"));
            steps.extend(counters.map(|it| command(["SET", it, "7"])));
            steps.push(command(["ZADD", "readers1", &score, reader]));
            steps.push(command(["PEXPIRE", "readers1", "20"]));
            let script = shape.ordinary(pair);
            let mut said = Vec::new();
            for step in steps {
                said.push(both(pair, step, shape.name)?);
            }
            for micros in [20_000, 600, 400, 2_700_000_000] {
                pair.let_time_pass(Duration::from_micros(micros))?;
                said.push(both(pair, script.clone(), shape.name)?);
            }
            all.push(said);
        }
    }
    Ok(all)
}

fn both(pair: &mut Pair, said: Command, context: &str) -> Result<Said, Box<dyn std::error::Error>> {
    let answer = pair.both(&said, context)?;
    Ok((pair.now(), said, answer))
}

struct Step<'a> {
    pair: &'a Pair,
    random: &'a mut Rng,
}

impl Step<'_> {
    fn any<T: AsRef<str>>(&mut self, from: &[T]) -> String {
        from[self.random.usize(0..from.len())].as_ref().to_owned()
    }

    fn at(&self) -> At {
        At(self.pair.now())
    }

    fn command(&mut self) -> Command {
        let client = self.any(&[LISTENING[0], LISTENING[1], GONE]);
        let owner =
            format!("{:032x}{}", self.random.u8(0..3), self.any(&["", "", " x"])).replace("00000000", &client[..8]);
        let name = self.any(&["1", "2"]);
        let keys = |kinds: &[&str]| kinds.iter().map(|it| format!("{it}{name}")).collect::<Vec<_>>();
        match self.random.u8(0..20) {
            0..3 => {
                let wish = self.wish(&owner, &client.clone(), &client);
                self.script("acquire", [keys(&["lock", "fence", "list", "turn"]), one("canary")].concat(), wish)
            }
            3..6 => {
                let wish = self.wish(&owner, &reader(&client, 1), &client);
                let keys = [keys(&["lock", "fence", "list", "turn"]), one("canary"), keys(&["readers"])].concat();
                self.script("acquire_shared", keys, wish)
            }
            6..8 => {
                let wish = self.wish(&owner, &for_several(&client), &client);
                self.script(
                    "acquire_many",
                    [each_of_two(&["lock", "fence", "turn", "list"]), one("canary")].concat(),
                    wish,
                )
            }
            8 => {
                let mut wish = self.wish(&owner, &for_several(&client), &client);
                let told = wish.pop();
                wish.extend([self.any(&["1", "2", "3"]), self.any(&["0", "0", "1"])]);
                wish.extend(told);
                self.script("acquire_slot", [slots(), one("canary")].concat(), wish)
            }
            9..11 => {
                let leaving = self.leaving(&client, &client, None);
                self.script("release", keys(&["lock", "list", "turn"]), [one(&owner), leaving].concat())
            }
            11 => {
                let leaving = self.leaving(&reader(&client, 1), &client, None);
                self.script(
                    "release_shared",
                    keys(&["lock", "list", "turn", "readers"]),
                    [one(&owner), leaving].concat(),
                )
            }
            12 => {
                let way = self.any(&["1", "2"]);
                let leaving = self.leaving(&for_several(&client), &client, Some(&way));
                let raised = self.any(&[String::new(), self.token()]);
                let args = [vec![owner, raised, "0".to_owned()], leaving].concat();
                self.script("release_many", each_of_two(&["lock", "fence", "turn", "list"]), args)
            }
            13 => {
                let leaving = self.leaving(&for_several(&client), &client, None);
                let args =
                    [vec![owner, self.any(&["0", "0", "1", "3"]), self.any(&["", "5"]), "0".to_owned()], leaving];
                self.script("release_slots", slots(), args.concat())
            }
            14 => {
                let extension = self.extension(&owner);
                self.script("extend", [keys(&["lock", "fence"]), one("canary")].concat(), extension)
            }
            15 => {
                let extension = self.extension(&owner);
                let keys = [keys(&["lock", "fence"]), one("canary"), keys(&["readers", "list", "turn"])].concat();
                self.script("extend_shared", keys, extension)
            }
            16 => {
                let extension = self.extension(&owner);
                self.script("extend_many", [each_of_two(&["lock", "fence"]), one("canary")].concat(), extension)
            }
            17 => {
                let args = vec![owner, self.token(), "0".to_owned()];
                match self.random.u8(0..3) {
                    0 => self.script("raise", keys(&["lock", "fence"]), args),
                    1 => self.script("raise_shared", keys(&["lock", "fence", "readers"]), args),
                    _ => self.script("raise_many", each_of_two(&["lock", "fence"]), args),
                }
            }
            18 => {
                let keys = keys(&["lock", "fence", "list", "turn", "readers"]);
                self.script("inspect", keys, vec!["100".to_owned(), "512".to_owned()])
            }
            _ => match self.random.u8(0..5) {
                0 => command(["DEL", &keys(&["lock"])[0]]),
                1 => command(["SET", &keys(&["fence"])[0], &self.at().in_ms(1)]),
                2 => command(["SET", "canary", "0"]),
                3 => {
                    let today = self.at().micros() / 86_400_000_000;
                    let args = vec!["2000".to_owned(), self.any(&["0", "3000"]), today.to_string()];
                    self.script("greet", one("canary"), args)
                }
                _ => {
                    let print = format!("{:016x}", self.random.u8(0..9));
                    self.script("meet", one("set"), vec!["42".to_owned(), print, "3".to_owned(), String::new()])
                }
            },
        }
    }

    fn script(&self, name: &str, keys: Vec<String>, args: Vec<String>) -> Command {
        let bytes = |it: Vec<String>| it.into_iter().map(String::into_bytes).collect::<Vec<_>>();
        self.pair.script(name, &bytes(keys), &bytes(args))
    }

    /// A proposal, or a token.
    fn token(&self) -> String {
        (self.at().micros() - 1).to_string()
    }

    fn life(&mut self) -> String {
        self.any(&["2000", "10000", "400"])
    }

    fn wish(&mut self, owner: &str, member: &str, client: &str) -> Vec<String> {
        let at = self.at();
        let member = self.any(&["", member, member, member]);
        let enters = if member.is_empty() { String::new() } else { self.any(&["", "30000", "30000"]) };
        vec![
            owner.to_owned(),
            self.life(),
            self.any(&[self.token(), self.token(), at.in_ms(-60_000), at.in_ms(4_000_000)]),
            self.any(&["0", "50000"]),
            self.any(&["0", "0", "1500"]),
            self.any(&["fair", "unfair"]),
            self.any(&[at.in_ms(0), at.in_ms(-400), at.in_ms(-3_000)]),
            member,
            enters,
            self.told(client),
        ]
    }

    /// Who listens polls now and then, as on a connection that has just been opened.
    fn told(&mut self, client: &str) -> String {
        if client == GONE { self.any(&["1", "0", "0"]) } else { self.any(&["1", "1", "1", "0"]) }
    }

    fn extension(&mut self, owner: &str) -> Vec<String> {
        let mut args = vec![owner.to_owned(), self.life(), self.token(), self.any(&["0", "50000"]), "1500".to_owned()];
        args.extend(Some(self.any(&["", "keep", "heal"])).filter(|it| !it.is_empty()));
        args
    }

    fn leaving(&mut self, member: &str, client: &str, way: Option<&str>) -> Vec<String> {
        let (member, since) = (member.to_owned(), self.at().in_ms(-500));
        match self.random.u8(0..4) {
            0 => Vec::new(),
            1 => vec![member],
            2 => vec![member, since],
            _ => {
                let way = way.map(str::to_owned);
                let told = self.told(client);
                [member, since, "30000".to_owned()].into_iter().chain(way).chain([told]).collect()
            }
        }
    }
}

fn one(key: &str) -> Vec<String> {
    vec![key.to_owned()]
}

fn each_of_two(kinds: &[&str]) -> Vec<String> {
    kinds.iter().flat_map(|it| (1..=2).map(move |number| format!("{it}{number}"))).collect()
}

/// Of a semaphore with three permits.
fn slots() -> Vec<String> {
    let of_slots = ["slot", "slot-fence"].into_iter().flat_map(|it| (1..=3).map(move |number| format!("{it}{number}")));
    of_slots.chain(["slot-turn".to_owned(), "slot-list".to_owned()]).collect()
}

//! Each script with what may be stored under its keys, and with all forms of its arguments.

use std::time::Duration;

use crate::choices;
use crate::locks::{self, At, OURS, States, for_several, reader};
use crate::pair::{Case, GONE, LISTENING, Pair};
use crate::{Command, command};

/// Some arguments next to each other.
pub(crate) type Args = Vec<Vec<u8>>;

pub(crate) type StatesOf = dyn Fn(&str) -> Vec<States>;

pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) keys: Vec<String>,
    /// Of each key, what it may hold; given the run id of the server.
    pub(crate) states: Box<StatesOf>,
    /// What the arguments may be, one group after the other.
    pub(crate) args: Vec<Vec<Args>>,
}

impl Shape {
    /// Cases in which each two of these values meet. `is_long`: each two in a case of their own.
    pub(crate) fn pairs(&self, pair: &Pair, is_long: bool) -> Vec<Case> {
        self.cases(pair, |sizes| choices::pairs(sizes, 7, is_long))
    }

    /// Cases in which all of these values meet.
    pub(crate) fn product(&self, pair: &Pair) -> Vec<Case> {
        self.cases(pair, choices::product)
    }

    /// The script with the first of its arguments.
    pub(crate) fn ordinary(&self, pair: &Pair) -> Command {
        let keys: Vec<_> = self.keys.iter().map(|it| it.clone().into_bytes()).collect();
        pair.script(self.name, &keys, &self.args.iter().flat_map(|it| it[0].clone()).collect::<Args>())
    }

    fn cases(&self, pair: &Pair, choose: impl Fn(&[usize]) -> Vec<Vec<usize>>) -> Vec<Case> {
        let states = (self.states)(pair.run_id());
        let sizes: Vec<_> = states.iter().map(Vec::len).chain(self.args.iter().map(Vec::len)).collect();
        let keys: Vec<_> = self.keys.iter().map(|it| it.clone().into_bytes()).collect();
        let case = |choice: Vec<usize>| {
            let (of_states, of_args) = choice.split_at(states.len());
            let before = states.iter().zip(of_states).flat_map(|(it, at)| it[*at].clone()).collect();
            let args: Args = self.args.iter().zip(of_args).flat_map(|(it, at)| it[*at].clone()).collect();
            Case { before, last: pair.script(self.name, &keys, &args) }
        };
        choose(&sizes).into_iter().map(case).collect()
    }
}

pub(crate) fn each<const N: usize>(values: [&str; N]) -> Vec<Args> {
    values.map(|it| command([it])).into()
}

pub(crate) fn groups<const N: usize>(values: [&[&str]; N]) -> Vec<Args> {
    values.map(command).into()
}

/// How an acquire, an extension and a release may be meant; and what they may find.
struct Forms {
    at: At,
}

impl Forms {
    /// The first ten arguments of an acquire; the last of them is for the caller.
    fn wish(&self) -> Vec<Vec<Args>> {
        let [a, b] = LISTENING;
        let at = self.at;
        let (far, near) = (at.ahead().to_string(), (at.ahead() - 1).to_string());
        vec![
            each([OURS]),
            each(["10000", "1", "4000"]),
            each([&self.at.token().to_string(), &far, &near, "9007199254740991", "1"]),
            each(["0", "90000", "1"]),
            each(["60000", "0", "7200000"]),
            each(["fair", "unfair"]),
            each([&at.in_ms(-5_000), &at.in_ms(-60_000), &at.in_ms(0), "18446744073709551615"]),
            each(["", a, &for_several(a), &reader(a, 1), b]),
            each(["", "30000", "10"]),
        ]
    }

    fn told(&self) -> Vec<Args> {
        each(["1", "0"])
    }

    fn extension(&self) -> Vec<Vec<Args>> {
        vec![
            each([OURS]),
            each(["10000", "1", "4000"]),
            each([&self.at.token().to_string(), "5", "9007199254740991"]),
            each(["0", "90000", "1"]),
            each(["60000", "0"]),
            groups([&[], &["keep"], &["heal"]]),
        ]
    }

    fn raise(&self) -> Vec<Vec<Args>> {
        vec![each([OURS]), each([&self.at.token().to_string(), "5", "9007199254740991"]), each(["0", "90000"])]
    }

    /// The client's part of a release. `which`: in whose list it stays.
    fn leaving(&self, which: &[&str]) -> Vec<Args> {
        let [a, _] = LISTENING;
        let (since, now) = (self.at.in_ms(-5_000), self.at.in_ms(0));
        let (several, reads) = (for_several(a), reader(a, 1));
        let mut all = vec![command([""; 0]), command([""])];
        for me in [a, &several, &reads, GONE] {
            all.extend([command([me]), command([me, &since]), command([me, &now])]);
            for (life, told) in [("30000", "1"), ("30000", "0"), ("10", "1")] {
                if which.is_empty() {
                    all.push(command([me, &since, life, told]));
                }
                all.extend(which.iter().map(|it| command([me, &since, life, it, told])));
            }
        }
        all
    }

    fn lock(&self, number: u8) -> [String; 5] {
        ["lock", "fence", "list", "turn", "readers"].map(|it| format!("{it}{number}"))
    }
}

pub(crate) fn all(now: Duration) -> Vec<Shape> {
    let at = At(now);
    let forms = Forms { at };
    [mutex(&forms), shared(&forms), several(&forms), slots(&forms), nodes(&forms), search()]
        .into_iter()
        .flatten()
        .collect()
}

fn mutex(forms: &Forms) -> Vec<Shape> {
    let at = forms.at;
    let [lock, fence, list, turn, readers] = forms.lock(1);
    let keys = |keys: &[&str]| keys.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    let all = move |run: &str| {
        let [lock, fence, list, turn, readers] = ["lock1", "fence1", "list1", "turn1", "readers1"];
        let of = (locks::lock(lock), locks::counter(fence, at), locks::canary("canary", at, run));
        let line = (locks::list(list, at), locks::reservation(turn, at), locks::readers(readers, at));
        (of, line)
    };
    vec![
        Shape {
            name: "acquire",
            keys: keys(&[&lock, &fence, &list, &turn, "canary"]),
            states: Box::new(move |run| {
                let ((lock, fence, canary), (list, turn, _)) = all(run);
                vec![lock, fence, list, turn, canary]
            }),
            args: [forms.wish(), vec![forms.told()]].concat(),
        },
        Shape {
            name: "raise",
            keys: keys(&[&lock, &fence]),
            states: Box::new(move |run| {
                let ((lock, fence, _), _) = all(run);
                vec![lock, fence]
            }),
            args: forms.raise(),
        },
        Shape {
            name: "extend",
            keys: keys(&[&lock, &fence, "canary"]),
            states: Box::new(move |run| {
                let ((lock, fence, canary), _) = all(run);
                vec![lock, fence, canary]
            }),
            args: forms.extension(),
        },
        release(forms, false),
        release(forms, true),
        Shape {
            name: "inspect",
            keys: keys(&[&lock, &fence, &list, &turn, &readers]),
            states: Box::new(move |run| {
                let ((lock, fence, _), (list, turn, readers)) = all(run);
                vec![lock, fence, list, turn, readers]
            }),
            args: vec![each(["100", "1", "0"]), each(["512", "3", "0"])],
        },
    ]
}

/// What an operator asks. Servers list keys in an order of their own, so one is listed at most.
fn search() -> Vec<Shape> {
    const KEYS: [&str; 10] = [
        "quorlock:fence:{a}",
        "quorlock:fence-1:{a}",
        "quorlock:fenced:{a}",
        "quorlock:readers:{a}",
        "quorlock:slot-fence-12:{a}",
        "quorlock:slot-fence-:{a}",
        "quorlock:slot-fence-1",
        "quorlock:slot-fence-1:{a}",
        "quorlock:slot-fence-1f:{a}",
        "other:fence:{a}",
    ];
    let list = |keys: &[&str], max: &[&str]| {
        let keys: Vec<_> = keys.iter().map(|it| (*it).to_owned()).collect();
        let of = keys.clone();
        let states = move |_: &str| of.iter().map(|it| vec![vec![command(["SET", it, "1"])], Vec::new()]).collect();
        let args = vec![
            each(["0"]),
            each(["1000"]),
            each(["quorlock:*"]),
            max.iter().map(|it| command([it])).collect(),
            each(["100", "18", "17", "0"]),
            each(["1000", "18", "17", "0"]),
        ];
        Shape { name: "list", keys, states: Box::new(states), args }
    };
    let mut shapes: Vec<_> = KEYS.iter().map(|it| list(&[it], &["1", "0", "10"])).collect();
    shapes.push(list(&[KEYS[0], KEYS[3]], &["1", "0"]));
    let present = |_: &str| vec![locks::lock("lock1"), locks::lock("lock2")];
    let keys = ["lock1", "lock2"].map(str::to_owned).into();
    shapes.push(Shape { name: "present", keys, states: Box::new(present), args: Vec::new() });
    let (keys, states) = (vec!["quorlock:probe".to_owned()], |_: &str| vec![vec![Vec::new()]]);
    shapes.push(Shape { name: "probe", keys, states: Box::new(states), args: vec![each([GONE])] });
    shapes
}

fn release(forms: &Forms, is_raised: bool) -> Shape {
    let at = forms.at;
    let token_text = at.token().to_string();
    let raised =
        if is_raised { groups([&[&token_text, "0"], &[&token_text, "90000"], &["5", "0"]]) } else { groups([&[]]) };
    let mut keys: Vec<_> = ["lock1", "list1", "turn1"].map(str::to_owned).into();
    keys.extend(is_raised.then(|| "fence1".to_owned()));
    Shape {
        name: "release",
        keys,
        states: Box::new(move |_| {
            vec![
                locks::lock("lock1"),
                locks::list("list1", at),
                locks::reservation("turn1", at),
                locks::counter("fence1", at),
            ]
        }),
        args: vec![each([OURS]), raised, forms.leaving(&[])],
    }
}

fn shared(forms: &Forms) -> Vec<Shape> {
    let at = forms.at;
    let all = move |keys: &[&str], run: &str| {
        let state = |key: &&str| match *key {
            "lock1" => {
                // Readers above all.
                let mut states = locks::lock(key);
                states.swap(0, 3);
                states
            }
            "fence1" => locks::counter(key, at),
            "list1" => locks::list(key, at),
            "turn1" => locks::reservation(key, at),
            "readers1" => locks::readers(key, at),
            _ => locks::canary(key, at, run),
        };
        keys.iter().map(state).collect::<Vec<_>>()
    };
    let shape = |name, keys: &'static [&'static str], args| Shape {
        name,
        keys: keys.iter().map(|it| (*it).to_owned()).collect(),
        states: Box::new(move |run| all(keys, run)),
        args,
    };
    vec![
        shape(
            "acquire_shared",
            &["lock1", "fence1", "list1", "turn1", "canary", "readers1"],
            [forms.wish(), vec![forms.told()]].concat(),
        ),
        shape("raise_shared", &["lock1", "fence1", "readers1"], forms.raise()),
        shape("extend_shared", &["lock1", "fence1", "canary", "readers1", "list1", "turn1"], forms.extension()),
        shape("release_shared", &["lock1", "list1", "turn1", "readers1"], vec![each([OURS]), forms.leaving(&[])]),
    ]
}

fn several(forms: &Forms) -> Vec<Shape> {
    let at = forms.at;
    let state = move |key: &str, run: &str| match key.trim_end_matches(|it: char| it.is_ascii_digit()) {
        "lock" => locks::lock(key),
        "fence" => locks::counter(key, at),
        "list" => locks::list(key, at),
        "turn" => locks::reservation(key, at),
        _ => locks::canary(key, at, run),
    };
    let shape = |name, kinds: &[&str], more: &[&str], args| {
        let of_kinds = kinds.iter().flat_map(|kind| (1..=2).map(move |it| format!("{kind}{it}")));
        let keys: Vec<_> = of_kinds.chain(more.iter().map(|it| (*it).to_owned())).collect();
        let names = keys.clone();
        Shape { name, keys, states: Box::new(move |run| names.iter().map(|it| state(it, run)).collect()), args }
    };
    let token_text = at.token().to_string();
    let raised = groups([&["", "0"], &[&token_text, "0"], &[&token_text, "90000"], &["5", "0"]]);
    vec![
        shape(
            "acquire_many",
            &["lock", "fence", "turn", "list"],
            &["canary"],
            [forms.wish(), vec![forms.told()]].concat(),
        ),
        shape("raise_many", &["lock", "fence"], &[], forms.raise()),
        shape("extend_many", &["lock", "fence"], &["canary"], forms.extension()),
        shape(
            "release_many",
            &["lock", "fence", "turn", "list"],
            &[],
            vec![each([OURS]), raised, forms.leaving(&["1", "2"])],
        ),
    ]
}

/// Five slots: the last of them has a digit of its own.
const SLOTS: u8 = 5;

fn slots(forms: &Forms) -> Vec<Shape> {
    let at = forms.at;
    let numbered = |kind: &str| (1..=SLOTS).map(|it| format!("{kind}{it}")).collect::<Vec<_>>();
    let keys = [numbered("slot"), numbered("fence"), vec!["turn1".to_owned(), "list1".to_owned()]].concat();
    // The first two and the last may hold anything; those between are taken or free together.
    let states = move |run: &str| {
        let between =
            |how: &str| (3..SLOTS).map(|it| command(["SET", &format!("slot{it}"), how, "PX", "60000"])).collect();
        let mut states = vec![locks::lock("slot1"), locks::lock("slot2"), locks::lock(&format!("slot{SLOTS}"))];
        states.push(vec![Vec::new(), between("somebody"), between(OURS)]);
        states.push(locks::counter("fence1", at));
        states.push(locks::counter("fence2", at));
        states.push(locks::counter(&format!("fence{SLOTS}"), at));
        states.extend([locks::reservation("turn1", at), locks::list("list1", at), locks::canary("canary", at, run)]);
        states
    };
    let token_text = at.token().to_string();
    vec![
        Shape {
            name: "acquire_slot",
            keys: [keys.clone(), vec!["canary".to_owned()]].concat(),
            states: Box::new(states),
            args: [forms.wish(), vec![each(["1", "2", "5"]), each(["0", "1"]), forms.told()]].concat(),
        },
        Shape {
            name: "release_slots",
            keys,
            states: Box::new(states),
            args: vec![
                each([OURS]),
                each(["0", "1", "4"]),
                groups([&["", "0"], &[&token_text, "0"], &[&token_text, "90000"]]),
                forms.leaving(&[]),
            ],
        },
    ]
}

fn nodes(forms: &Forms) -> Vec<Shape> {
    let at = forms.at;
    let today = at.micros() / 86_400_000_000;
    let (today, yesterday, long_ago) = (today.to_string(), (today - 1).to_string(), (today - 9).to_string());
    let print = |it: u8| format!("{it:016x}");
    let old = at.in_ms(-20_000);
    vec![
        Shape {
            name: "greet",
            keys: vec!["canary".to_owned()],
            states: Box::new(move |run| vec![locks::canary("canary", at, run)]),
            args: vec![
                each(["60000", "0", "9000000"]),
                each(["0", "70000", "9000000"]),
                each([&today, &yesterday, &long_ago, "0"]),
                groups([
                    &[],
                    &["vouch"],
                    &["slot"],
                    &["slot", "7", "0-5460,7000-7001"],
                    &["slot", "8", "0-5460"],
                    &["vouch", "7", "5-9"],
                    &["settle", &old, "12", "old"],
                    &["settle", &old, "0", "vouched"],
                    &["settle", "1", "12", "new"],
                ]),
            ],
        },
        Shape {
            name: "meet",
            keys: vec!["set".to_owned()],
            states: Box::new(move |_| vec![locks::set("set", at)]),
            args: vec![
                each(["4242", "9007199254740991"]),
                groups([&[&print(1), "3"], &["", "3"], &[&print(9), "255"]]),
                each(["", &print(2), &format!("{} {}", print(3), print(4))]),
            ],
        },
    ]
}

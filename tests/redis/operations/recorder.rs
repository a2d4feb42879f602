//! What a recorder of metrics is given in this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// Every value that each series was given, one after the other: what a gauge was, what a histogram was told, what a counter
/// grew by.
static SERIES: Mutex<BTreeMap<String, Arc<Series>>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Series(Mutex<Vec<f64>>);

impl Series {
    fn push(&self, next: impl FnOnce(f64) -> f64) {
        let mut values = self.0.lock().unwrap();
        let last = values.last().copied().unwrap_or(0.0);
        values.push(next(last));
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.push(|_| u32::try_from(value).unwrap().into());
    }

    fn absolute(&self, _: u64) {
        unreachable!("nobody sets a counter");
    }
}

impl GaugeFn for Series {
    fn increment(&self, value: f64) {
        self.push(|it| it + value);
    }

    fn decrement(&self, value: f64) {
        self.push(|it| it - value);
    }

    fn set(&self, value: f64) {
        self.push(|_| value);
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.push(|_| value);
    }
}

struct Everything;

impl Recorder for Everything {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(series(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(series(key))
    }
}

/// As Prometheus writes it, with a comma behind each label.
fn series(key: &Key) -> Arc<Series> {
    let labels: String = key
        .labels()
        .map(|it| format!("{}=\"{}\",", it.key(), it.value()))
        .collect();
    let name = format!("{}{{{labels}}}", key.name());
    Arc::clone(SERIES.lock().unwrap().entry(name).or_default())
}

pub(crate) fn install() {
    metrics::set_global_recorder(Everything).unwrap();
}

/// How many values each series has.
pub(crate) fn lengths() -> BTreeMap<String, usize> {
    let all = SERIES.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter()
        .map(|(name, series)| (name.clone(), series.0.lock().unwrap().len()))
        .collect()
}

/// Whether a line of the page is so: `NAME{LABELS} grows`, `… is N` or `… is above N`, since the series had so many values.
pub(crate) fn is_so(line: &str, since: &BTreeMap<String, usize>) -> bool {
    let (wanted, what) = line.split_once(' ').unwrap();
    let (name, labels) = wanted
        .trim_end_matches('}')
        .split_once('{')
        .unwrap_or((wanted, ""));
    let fits = |series: &str| {
        series
            .strip_prefix(name)
            .is_some_and(|it| it.starts_with('{'))
            && labels
                .split(',')
                .filter(|it| !it.is_empty())
                .all(|it| series.contains(&format!("{it},")))
    };
    let test: Box<dyn Fn(f64) -> bool> = if what == "grows" {
        Box::new(|it| 0.0 < it)
    } else if let Some(limit) = what.strip_prefix("is above ") {
        let limit: f64 = limit.parse().unwrap();
        Box::new(move |it| limit < it)
    } else {
        let expected: f64 = what.strip_prefix("is ").unwrap().parse().unwrap();
        Box::new(move |it| (it - expected).abs() < 1e-9)
    };
    let all = SERIES.lock().unwrap();
    all.iter().filter(|it| fits(it.0)).any(|(name, series)| {
        let values = series.0.lock().unwrap();
        values[since.get(name).copied().unwrap_or(0)..]
            .iter()
            .any(|it| test(*it))
    })
}

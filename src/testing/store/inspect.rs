//! `inspect.lua`: what a node stores about a lock.

use super::call::{Args, Outcome, Run};
use super::counter::whole;
use super::number::of_len;
use super::reply::Reply;
use super::reservation::{SHARED, till};

pub(super) fn inspect(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let [lock, fence, list, turn, readers] = keys.array()?;
    let (named_max, value_max) = (args.number(1)?, args.number(2)?);
    let ms = run.ms();
    let (mut what, mut left, mut value, mut entries) = (0.0, 0.0, Vec::new(), Vec::new());
    if run.keys.exists(lock) {
        left = run.keys.pttl(lock);
        match run.keys.text(lock) {
            None => what = -1.0,
            Some(text) if text == SHARED => {
                what = 3.0;
                entries = run.keys.zall(readers).unwrap_or_default();
                entries.retain(|it| ms < it.1);
            }
            Some(text) if value_max < of_len(text.len()) => what = 2.0,
            Some(text) => (what, value) = (1.0, text),
        }
    }
    let counter = match run.keys.get(fence) {
        Ok(None) => -1.0,
        Ok(Some(found)) => whole(Some(&found)).unwrap_or(-2.0),
        Err(_) => -2.0,
    };
    let since = run.keys.zrange(list, 0, 1).first().map_or(0.0, |it| it.1.floor());
    let till = run.keys.text(turn).and_then(|it| till(&it));
    let reserved = till.map_or(0.0, |till| (till - ms).max(0.0));
    let waiting = run.keys.zcard(list).unwrap_or(0.0);

    let reply = Reply::numbers([what, left, counter, waiting, since, reserved, run.now]);
    let reply = reply.and(Reply::Bulk(value)).and(Reply::number(of_len(entries.len())));
    let named = entries.into_iter().enumerate().take_while(|(i, _)| of_len(*i) < named_max);
    Ok(named.fold(reply, |reply, (_, (owner, till))| reply.and(Reply::Bulk(owner)).and(Reply::number(till - ms))))
}

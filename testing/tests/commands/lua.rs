//! The interpreter as scripts see it.

use crate::pair::Pair;
use crate::{TestResult, command, sources, words};

/// Scripts. `KEYS` is { "key", "list" }, a string and a sorted set; `ARGV` is { "41", "", "a b\r\n" }.
const SNIPPETS: [&str; 84] = [
    // What a script returns.
    "",
    "return",
    "return nil",
    "return true",
    "return false",
    "return 'text'",
    "return ''",
    "return 7, 8",
    "return -0.9",
    "return 3.99",
    "return -3.99",
    "return 2^53",
    "return 2^53 - 1",
    "return -2^53",
    "return 1700000000000000 * 1 + 0.5",
    "return {}",
    "return { 1, 'a', { 2.7, { 'b' } } }",
    "return { 1, 2, nil, 4 }",
    "return { 1, false, true, 4 }",
    "return { false }",
    "return { nil, 1 }",
    "return { 1, function() end, 2 }",
    "return { x = 1, 2 }",
    "return function() end",
    "return { ok = 'FINE' }",
    "return { err = 'MY error' }",
    "return { 1, { err = 'MY error' }, { ok = 'FINE' } }",
    "return redis.status_reply('FINE')",
    "return redis.error_reply('MY error')",
    // What is passed to it.
    "return KEYS",
    "return ARGV",
    "return { #KEYS, #ARGV, ARGV[3], KEYS[3], ARGV[4] }",
    "return { #KEYS, KEYS[3] == nil, type(ARGV[1]), ARGV[1] * 2, #ARGV[2] }",
    "return { unpack(KEYS, 1, 1) }",
    "return { unpack(ARGV, 2) }",
    "KEYS[1] = 'other'; return KEYS",
    // Replies of commands.
    "return redis.call('GET', KEYS[1])",
    "return redis.call('get', 'none')",
    "return { type(redis.call('GET', 'none')), redis.call('GET', 'none') == false }",
    "return { type(redis.call('TIME')), #redis.call('TIME'), type(redis.call('TIME')[1]) }",
    "local clock = redis.call('TIME') return clock[1] * 1000000 + clock[2]",
    "return { type(redis.call('SET', KEYS[1], 'x')), redis.call('SET', KEYS[1], 'x').ok }",
    "return { type(redis.call('SET', KEYS[1], 'x', 'NX')), redis.call('SET', KEYS[1], 'x', 'XX').ok }",
    "return { type(redis.call('EXISTS', KEYS[1])), redis.call('EXISTS', KEYS[1]) == 1 }",
    "return redis.call('TYPE', KEYS[1]).ok",
    "return redis.call('TYPE', KEYS[1])",
    "return redis.call('MGET', KEYS[1], 'none', KEYS[2], KEYS[1])",
    "local found = redis.call('MGET', 'none', KEYS[1]) return { #found, found[1] == false, found[2] }",
    "local a, b, c = unpack(redis.call('MGET', 'none', KEYS[1], 'none')) return { a, b, c }",
    "local r = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES') return { #r, r[2], type(r[2]), r[6] % 1 == 0.5 and 1 or 0 }",
    "return redis.call('ZSCORE', KEYS[2], 'c')",
    "return redis.call('ZRANGE', 'none', 0, -1)",
    "return redis.pcall('ZRANGE', KEYS[2], 0, 0)[1]",
    // Errors of commands.
    "return redis.call('GET', KEYS[2])",
    "return redis.pcall('GET', KEYS[2])",
    "local r = redis.pcall('GET', KEYS[2]) return { type(r), string.find(r.err, 'WRONGTYPE', 1, true), type(r.ok) }",
    "redis.pcall('SET', KEYS[1], 'new') redis.call('ZADD', KEYS[1], 1, 'a') return redis.call('DEL', KEYS[2])",
    "return redis.pcall('SET', KEYS[1], 'x', 'PX', 0)",
    "return type(redis.pcall('NOCOMMAND').err)",
    "return type(redis.pcall('GET').err)",
    "return type(redis.pcall('GET', false).err)",
    // Numbers as arguments of commands.
    "for i, n in ipairs({ 0, -1, 7, 1e15, 2^53, -2^53, 1700000000000001, 1.5, -0.25, 1e16 }) do \
     redis.call('SET', 'n' .. i, n) end",
    "redis.call('SET', KEYS[1], 0.1) return tonumber(redis.call('GET', KEYS[1])) == 0.1 and redis.call('DEL', KEYS[1])",
    "redis.call('ZADD', KEYS[2], 1700000000000000 + 0.5, 'new') redis.call('ZADD', KEYS[2], '1700000000000001.5', 'old')",
    "redis.call('SET', KEYS[1], 'x', 'PX', 3 * 100) redis.call('PEXPIRE', KEYS[2], math.floor(700.9))",
    // Numbers and texts.
    "return { tostring(1e15), tostring(1e14), tostring(2^53), tostring(0.1), tostring(-7), 1e15 .. '', 12 .. '' }",
    "return { string.format('%.0f', 2^53), string.format('%.0f', 1700000000000000.5), string.format('%.0f', 0.5) }",
    "return { string.format('%s %.0f %s %x', 'a', 1e17, 'b', 255), string.format('%016.0f|%d|%5s', 7, 3, 'x') }",
    "local t = {} for _, it in ipairs({ '7', '007', ' 7 ', '1e3', '0x10', '1f', '', '7a', '-7', '1.5', '9007199254740993' }) do \
     t[#t + 1] = tostring(tonumber(it)) end return t",
    "return { tostring(tonumber(false)), tostring(tonumber({})), type(tonumber(nil)) }",
    "return { 7 % 3, -7 % 3, 2.5 % 1 == 0.5, 7 / 2 == 3.5, 2 ^ 3, '10' + 5, '3' * '4' }",
    "return { math.floor(-0.5), math.max(1, 2.5, 2) == 2.5, math.min(3, 2), math.huge > 2^53, 5 < math.huge }",
    "return { 'a' < 'b', 'Z' < 'a', '10' < '9', 'a' < 'ab', '\\255' > 'a', 'a\\0b' ~= 'a\\0c', #'a\\0b' }",
    "return { string.find('abc 12', '%d+'), string.find('a.b', '.', 1, true), string.find('abc', 'x') == nil, select(2, string.find('ff ', '^%x+ ')) }",
    "return { string.match('1 22 333', '^(%d+) (%S+) ?(%d*)$') }",
    "return { string.match('0 ', '^(%d+) (%S+) ?(%d*)$') == nil, string.match('k=v', '(%w+)=(%w+)'), string.match('x', '()') }",
    "local t = {} for a, b in string.gmatch('1-2,30-40', '(%d+)-(%d+)') do t[#t + 1] = b .. a end return t",
    "local t = {} for it in string.gmatch('*a,bc', '[^*,]+') do t[#t + 1] = it end return t",
    "return { string.sub('abcdef', 2, 3), string.sub('abc', -2), string.sub('abc', 2), string.sub('abc', 9), string.rep('ab', 3) }",
    "return { table.concat({ 'a', 1, 2.5 }, ','), table.concat({}), table.concat({ 1e15, 2^53 }, ' ') }",
    "local t = { 2, 3 } table.insert(t, 1, 1) table.insert(t, 4) table.sort(t, function(a, b) return a > b end) return t",
    "return { type(select), select('#', 1, nil, 3), next({}) == nil, type(pairs), type(pcall), type(setmetatable) }",
    // Errors of the script itself.
    "return unknown",
    "return ('x').y.z",
];

/// Of these only the fact is compared: servers have words of their own.
const REFUSED: [&str; 9] = [
    "x = 1",
    "function f() end",
    "return 1 +",
    "return nil + 1",
    "return redis.call()",
    "return redis.call('NO')",
    "return redis.call('GET', nil)",
    "return redis.call('GET', {})",
    "return redis.call('GET', true)",
];

#[test]
fn a_script_has_the_same_result() -> TestResult {
    let Some(mut pair) = Pair::start()? else {
        return Ok(());
    };
    let state = || {
        [
            words("SET key 41 PX 700"),
            words("ZADD list 1 a 1 b 1700000000000000.5 c"),
        ]
    };
    for snippet in SNIPPETS {
        let eval = command(["EVAL", snippet, "2", "key", "list", "41", "", "a b\r\n"]);
        pair.compare(state().into_iter().chain([eval]))?;
    }
    for snippet in REFUSED {
        let refused = format!("EVAL|{snippet}|0");
        pair.compare_refusal(&command(refused.split('|')))?;
    }
    Ok(())
}

#[test]
fn a_script_runs_by_its_hash_until_scripts_are_flushed() -> TestResult {
    let Some(mut pair) = Pair::start()? else {
        return Ok(());
    };
    let source = "return { KEYS[1], ARGV[1], ARGV[2] }";
    let (hash, unknown) = (sources::hash(source), sources::hash("return 1"));
    let run = |how: &str, rest: &str| words(&format!("{how} {rest}"));
    let evalsha = |rest: &str| run("EVALSHA", &format!("{hash} {rest}"));
    let exists = || {
        run(
            "SCRIPT EXISTS",
            &format!("{hash} {unknown} x {}", hash.to_uppercase()),
        )
    };
    let flush = || words("SCRIPT FLUSH");
    pair.compare([
        flush(),
        exists(),
        evalsha("1 a b"),
        command(["SCRIPT", "LOAD", source]),
        exists(),
        evalsha("1 a b"),
    ])?;
    let known = || [flush(), command(["EVAL", source, "1", "a"]), exists()];
    for rest in [
        "0", "1 a", "1 a b c", "2 a b", "0 a b", "2 a", "-1 a", "x a", "",
    ] {
        pair.compare(known().into_iter().chain([evalsha(rest)]))?;
    }
    pair.compare(known().into_iter().chain([
        run("EVALSHA", &format!("{} 1 a", hash.to_uppercase())),
        flush(),
        exists(),
    ]))?;
    pair.compare([words("EVALSHA"), words("EVAL"), words("SCRIPT")])?;
    pair.compare_refusal(&words("SCRIPT LOAD"))
}

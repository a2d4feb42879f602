//! Runs scripts as a Redis server does: Lua 5.1 with `KEYS`, `ARGV` and `redis`.
//!
//! An interpreter keeps nothing of a script but its compiled form, so all stores of a process share
//! a few of them. Each runs one script at a time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mlua::chunk::ChunkMode;
use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};

use crate::store::commands::Data;
use crate::store::reply::Reply;

/// What scripts have beside the libraries of Lua. It is given the function that runs a command. It
/// returns the function that runs a script, and returns whether the script ended without an error,
/// and its reply or the text of the error.
const PRELUDE: &str = r#"
local run = ...
local function raise(name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 3)
end
redis = {
  pcall = run,
  call = function(...)
    local reply = run(...)
    if type(reply) == "table" and reply.err then
      error(reply, 0)
    end
    return reply
  end,
  error_reply = function(text)
    return { err = string.find(text, " ", 1, true) and text or "ERR " .. text }
  end,
  status_reply = function(text)
    return { ok = text }
  end,
}
print, dofile, loadfile = nil, nil, nil
setmetatable(_G, {
  __index = function(_, name) raise(name) end,
  __newindex = function() error("Attempt to modify a readonly table", 2) end,
})
local pcall, type, tostring = pcall, type, tostring
return function(script)
  local is_done, reply = pcall(script)
  if is_done then
    return true, reply
  end
  return false, type(reply) == "table" and reply.err or "ERR " .. tostring(reply)
end
"#;

struct Interpreter {
    lua: Lua,
    runner: Function,
    /// By the hash of their source.
    compiled: HashMap<String, Function>,
}

/// Interpreters that run nothing at the moment.
fn idle() -> MutexGuard<'static, Vec<Interpreter>> {
    static IDLE: Mutex<Vec<Interpreter>> = Mutex::new(Vec::new());
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a script on the data. `sha`: the hash of its source.
pub(super) fn run(
    data: Data,
    sha: &str,
    source: &[u8],
    keys: &[Vec<u8>],
    args: &[Vec<u8>],
) -> (Data, Reply) {
    let taken = idle().pop();
    let mut interpreter = match taken.map_or_else(Interpreter::new, Ok) {
        Ok(interpreter) => interpreter,
        Err(err) => return (data, Reply::Error(format!("ERR no interpreter: {err}"))),
    };
    interpreter.lua.set_app_data(data);
    let reply = interpreter.reply_of(sha, source, keys, args);
    let data = interpreter.lua.remove_app_data().unwrap_or_default();
    idle().push(interpreter);
    (
        data,
        reply.unwrap_or_else(|err| Reply::Error(format!("ERR {}", one_line(&err.to_string())))),
    )
}

impl Interpreter {
    fn new() -> mlua::Result<Interpreter> {
        let lua = Lua::new_with(
            StdLib::TABLE | StdLib::STRING | StdLib::MATH,
            LuaOptions::default(),
        )?;
        let run = lua.create_function(|lua, args: MultiValue| {
            let command: Result<Vec<_>, _> = args.iter().map(argument).collect();
            let reply = match command {
                Ok(command) => lua
                    .app_data_mut::<Data>()
                    .map(|mut data| data.execute(&command)),
                Err(text) => Some(Reply::Error(text.to_owned())),
            };
            to_lua(lua, &reply.unwrap_or(Reply::Nil))
        })?;
        let runner = lua.load(PRELUDE).set_mode(ChunkMode::Text).call(run)?;
        Ok(Interpreter {
            lua,
            runner,
            compiled: HashMap::new(),
        })
    }

    fn reply_of(
        &mut self,
        sha: &str,
        source: &[u8],
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> mlua::Result<Reply> {
        let script = match self.compiled.get(sha) {
            Some(script) => script.clone(),
            None => {
                let chunk = self
                    .lua
                    .load(source)
                    .set_name("@user_script")
                    .set_mode(ChunkMode::Text);
                let script = chunk.into_function()?;
                self.compiled.insert(sha.to_owned(), script.clone());
                script
            }
        };
        for (name, texts) in [("KEYS", keys), ("ARGV", args)] {
            let texts = texts
                .iter()
                .map(|text| self.lua.create_string(text))
                .collect::<mlua::Result<Vec<_>>>()?;
            self.lua.globals().raw_set(name, texts)?;
        }
        let (is_done, reply): (bool, Value) = self.runner.call(script)?;
        let reply = of_lua(&reply)?;
        Ok(match reply {
            Reply::Bulk(text) if !is_done => Reply::Error(one_line(&format!(
                "{} script: {sha}, on @user_script.",
                String::from_utf8_lossy(&text)
            ))),
            reply => reply,
        })
    }
}

/// Errors are one line on the wire.
fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

/// An argument of `redis.call`. Numbers as servers write them: with 17 digits, where Lua's own form
/// has 14.
fn argument(value: &Value) -> Result<Vec<u8>, &'static str> {
    const WHOLE_MAX: f64 = 1e17;
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into_bytes()),
        Value::Number(number) if number.fract() == 0.0 && number.abs() < WHOLE_MAX => {
            Ok((*number as i64).to_string().into_bytes())
        }
        // Shorter than 17 digits where a shorter form is the same number.
        Value::Number(number) => Ok(number.to_string().into_bytes()),
        _ => Err("ERR Lua redis lib command arguments must be strings or integers"),
    }
}

fn to_lua(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    let field = |name: &str, text: &str| {
        let table = lua.create_table()?;
        table.raw_set(name, text)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Status(text) => field("ok", text),
        Reply::Error(text) => field("err", text),
        Reply::Int(number) => Ok(Value::Integer(*number)),
        Reply::Bulk(text) => lua.create_string(text).map(Value::String),
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Array(members) => {
            let members = members
                .iter()
                .map(|member| to_lua(lua, member))
                .collect::<mlua::Result<Vec<_>>>()?;
            lua.create_sequence_from(members).map(Value::Table)
        }
    }
}

/// Numbers lose what is behind the point, and a table ends at its first nil.
fn of_lua(value: &Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::String(text) => Reply::bulk(text.as_bytes()),
        Value::Integer(number) => Reply::Int(*number),
        Value::Number(number) => Reply::Int(*number as i64),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => of_table(table)?,
        _ => Reply::Nil,
    })
}

fn of_table(table: &Table) -> mlua::Result<Reply> {
    if let Some(text) = table.raw_get::<Option<mlua::LuaString>>("err")? {
        return Ok(Reply::Error(one_line(&text.to_string_lossy())));
    }
    if let Some(text) = table.raw_get::<Option<mlua::LuaString>>("ok")? {
        return Ok(Reply::Status(one_line(&text.to_string_lossy())));
    }
    let members = table
        .sequence_values::<Value>()
        .map(|member| of_lua(&member?));
    members.collect::<mlua::Result<_>>().map(Reply::Array)
}

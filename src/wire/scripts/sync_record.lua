-- sync_record.lua: reads the server's record and updates it: the process that keeps the data, since
-- when, and the longest ttl of any lock there. Runs in the login, before any command that can set a
-- lock, and again for another version of the record.
--
-- KEYS[1]  record
-- ARGV[1]  a new version: 15 digits
-- ARGV[2]  the longest ttl of this client's locks, whole milliseconds, for a server without a
--          record; 0 for a client without quarantine
-- ARGV[3]  the longest that records of other servers have, or that an operator sets: whole
--          milliseconds
-- ARGV[4]  "note"
--          "look": writes nothing
--          "vouch": an operator confirms that nothing was lost, if there is no record or this
--          process began without one
-- ARGV[5]  the number of this client's servers
--
-- Returns { status, served, max_ttl, kept, version, servers, limited, logged, replicas, text }
--   status   1 this process has kept all data, and began with the data of another process
--            2 there was no record: the server is new, or has lost all data
--            3 there was a record of another process: the server was restarted, promoted, restored
--              or swapped
--            4 this process has kept all data, and began with none
--            5 an operator has confirmed that nothing was lost
--            6 the server has no quarantine
--   served   for how long this process has kept all data: milliseconds
--   max_ttl  the longest ttl of any lock, as it is stored now: milliseconds
--   kept     1 if the record is stored with all that, 0 if not
--   version  of the record that is stored; 0 if none is
--   servers  how many servers other clients have, as the record was found; 0 if nobody has written
--            that
--   limited  0 if its memory has no limit
--   logged   1 if every write is logged to the disk, 0 if not, 2 if INFO does not show it
--   replicas connected to it
--   text     maxmemory-policy, nothing if INFO does not show it; that version; and the versions out
--            of which it grew
--
-- The number of servers follows clients with one server more or less, and no others. It is no part
-- of the version: two clients with two numbers would otherwise force each other to sync with every
-- command.

-- Longest ttl: milliseconds.
local LONGEST = 3600000

local texts = {}
local function info(section, pattern)
  local text = texts[section] or redis.pcall("INFO", section)
  texts[section] = text
  return type(text) == "string" and string.match(text, "[\r\n]" .. pattern) or nil
end

-- include clock.lua
-- A promoted replica counts as another process: it may have missed writes of its primary, and may
-- be the one whose record that primary had taken over.
local run = info("server", "run_id:(%w+)") or "?"
if run ~= "?" and info("replication", "second_repl_offset:(%d+)") then
  run = run .. (info("replication", "master_replid:(%w+)") or "")
end
local own, reported = math.min(tonumber(ARGV[2]), LONGEST), math.min(tonumber(ARGV[3]), LONGEST)
local word = ARGV[4]

local found = redis.pcall("GET", KEYS[1])
if type(found) == "table" and not string.find(found.err, "WRONGTYPE", 1, true) then
  return redis.call("GET", KEYS[1])
end
found = type(found) == "string" and found or ""
local version, since, finish, format, its_run, origin, servers, rest =
  string.match(found, "^(%d+) (%d+) (%d+) (%d+) ([%w%?]+) (%l+) (%d+)(.*)$")
-- Fifteen earlier versions.
local grown = version and string.sub(" " .. version .. rest, 1, 240)
if not version or #version ~= 15 or #since ~= 16 or #finish ~= 16 or #servers > 3 then
  version, since, finish, its_run, servers, rest, grown = "0", nil, nil, run, "0", "", ""
  if found == "0" then
    since = now - 1000000 * tonumber(info("server", "uptime_in_seconds:(%d+)") or 0)
  end
  format, origin = "1", own == 0 and "off" or "new"
end
since = tonumber(since)
local stored = finish and math.floor((tonumber(finish) - since) / 1000) or 0
stored = math.max(0, math.min(stored, LONGEST))
-- RACE: T1, a client with a shorter ttl, writes the first record of an emptied server before it has
-- seen the others. Therefore a client that has seen both raises it.
local max_ttl = math.max(stored > 0 and stored or own, reported)

-- After an hour a promoted process without replicas no longer shows its promotion.
local is_kept = run == "?" or run == its_run or run == string.sub(its_run, 1, #run)
local status = 1
if not since then
  status = 2
elseif since > now or not is_kept then
  status = 3
end
if status ~= 1 then
  if since and origin ~= "off" then
    origin = "old"
  end
  since, its_run, format, rest, grown = now, run, "1", "", ""
elseif origin == "new" then
  status = 4
end

local vouches = word == "vouch" and origin == "new"
if vouches then
  since, origin = 0, "vouched"
end
if origin == "off" then
  status, since, max_ttl, stored = 6, 0, 0, 0
elseif origin == "vouched" then
  status = 5
end

local function value(servers)
  local finish = since + max_ttl * 1000
  return string.format("%016.0f %016.0f %s %s %s %s%s",
    since, finish, format, its_run, origin, servers, rest)
end
local own_servers, kept = tonumber(ARGV[5]), value(servers) == string.sub(found, 17)
rest = kept and rest or grown
local follows = own_servers > 0
  and (servers == "0" or math.abs(own_servers - tonumber(servers)) == 1)
if word ~= "look" and (follows or not kept) then
  local new = kept and version or ARGV[1]
  local done = redis.pcall("SET", KEYS[1], new .. " " .. value(follows and ARGV[5] or servers))
  if done.ok then
    kept, version = true, new
  elseif not kept and (word == "vouch" or version == "0") then
    return redis.call("SET", KEYS[1], found)
  end
end
local age = math.floor((now - since) / 1000)
return {
  status, age, kept and max_ttl or stored, kept and 1 or 0, tonumber(version), tonumber(servers),
  info("memory", "maxmemory:0") and 0 or 1,
  tonumber(info("persistence", "aof_enabled:([01])") or 2),
  tonumber(info("replication", "connected_slaves:(%d+)") or 0),
  (info("memory", "maxmemory_policy:([%w%-]+)") or "") .. " " .. version .. rest,
}

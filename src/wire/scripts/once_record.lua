-- once_record.lua: records a run of a job, while the lock of the job is held; or copies the record
-- of another node.
--
-- KEYS[1]  lock key
-- KEYS[2]  record of the job
-- KEYS[3]  record of the server, not used
-- ARGV[1]  the new record
-- ARGV[2]  its life, whole milliseconds, at least 1
-- ARGV[3]  owner token of the lock; none for a copy
--
-- Returns 1 if it is recorded, or a later one is; 0 if the lock key is not the owner's
--
-- A record: FORMAT STATE PERIOD TOKEN and more, which only clients read. Later records have a
-- larger PERIOD, or the same one and a larger TOKEN; of one run "begun" is the earlier one. Formats
-- begin with the same four fields.
local found = redis.call("MGET", KEYS[1], KEYS[2])
if ARGV[3] and found[1] ~= ARGV[3] then
  return 0
end
local function read(record)
  local state, period, token = string.match(record or "", "^%d+ (%l+) (%d+) (%d+)")
  return tonumber(period), tonumber(token), state
end
local period, token = read(ARGV[1])
local its_period, its_token, its_state = read(found[2])
if its_period and (its_period > period or its_period == period
    and (its_token > token or its_token == token and its_state ~= "begun")) then
  return 1
end
redis.call("SET", KEYS[2], ARGV[1], "PX", ARGV[2])
return 1

-- once_look.lua: what is recorded of a job that runs once per period. Changes nothing.
--
-- KEYS[1]  lock key
-- KEYS[2]  record of the job
-- KEYS[3]  record of the server
-- ARGV[1]  owner token of the lock; none for a look without the lock
-- ARGV[2]  version of the server's record that the client connected with
--
-- Returns -3 if the server's record has another version than ARGV[2]; otherwise { holds, kept, node
-- time, record }
--   holds      1 if the lock key is the owner's
--   kept       records that were written after this moment are still there: the END in the server's
--              record, microseconds since 1970; the node time if there is none
--   node time  microseconds since 1970
--   record     of the job: see once_record.lua; "" if there is none, "?" for a value that no client
--              writes
local found = redis.call("MGET", unpack(KEYS))
local record, job = found[3], found[2] or ""
if ARGV[2] and (not record or string.sub(record, 1, 15) ~= ARGV[2]) then
  return -3
end
-- include clock.lua
local kept = record and tonumber(string.sub(record, 34, 49)) or now
if #job > 2000 or string.find(job, "%c") then
  job = "?"
end
return { ARGV[1] and found[1] == ARGV[1] and 1 or 0, kept, now, job }

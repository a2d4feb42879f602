-- list.lua: the locks and permits with keys on the node, a part of its keys at a time. Changes
-- nothing.
--
-- KEYS[1]  record, which is not read: a script names a key
-- ARGV[1]  where to go on: "0" at first
-- ARGV[2]  how many of the node's keys are looked at, about
-- ARGV[3]  what our keys look like
-- ARGV[4]  how many keys are returned at most
-- ARGV[5]  how long a key is at most, bytes: longer ones are left out
-- ARGV[6]  how long all of them are together at most, bytes
--
-- Returns { where to go on, too many, key, … }
--   where to go on  digits; "0" at the end
--   too many        1 if there were more keys than can be returned: the same place, to be looked at
--                     in smaller parts; else 0
--   key             a counter's, or the set of a lock's readers
local page = redis.call("SCAN", ARGV[1], "MATCH", ARGV[3], "COUNT", ARGV[2])
local max, longest, room = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local reply = { page[1], 0 }
for _, key in ipairs(page[2]) do
  -- Behind what all our keys begin with.
  local kind = string.sub(key, #ARGV[3])
  local is_ours = string.find(kind, "^fence[-:]") or string.find(kind, "^readers[-:]")
    or string.find(kind, "^slot%-fence%-%d+[-:]")
  if is_ours and #key <= longest then
    room = room - #key
    if #reply - 2 == max or room < 0 then
      if ARGV[2] == "1" then
        -- It does not become less.
        return reply
      end
      return { ARGV[1], 1 }
    end
    reply[#reply + 1] = key
  end
end
return reply

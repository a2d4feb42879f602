-- release.lua: releases the owner's locks or slots, and no others; hands each over to the first
-- waiting call.
--
-- KEYS as in acquire.lua
-- ARGV[1]  owner token
-- ARGV[2]  "NEXT LIFE FIRST RAISED KEEP": what is needed only if others wait, the token was raised,
--          or there are slots
--     NEXT    the fencing token that is offered to the next owner: the time for all, or one more
--             than the owner's token. Only where the owner's key was: whoever only leaves the list
--             offers none
--     LIFE    of the counter, whole milliseconds; 0 for no end
--     FIRST   life of a lock that is handed over, whole milliseconds
--     RAISED  the owner's fencing token if it was raised, a whole number below 2^53; 0 if not
--     KEEP    "-" for locks; of slots the one that the owner keeps, from 1, 0 for none
-- then, if the owner's call may be in the waiting list, or a call of its client enters it:
-- ARGV[3]  client id
-- ARGV[4]  when the call began that enters the list, microseconds since 1970
-- ARGV[5]  "WHICH LIFE YIELDS MEMBER GETS_MESSAGES"
--     WHICH   it enters the list of this lock, from 1
--     LIFE    of the list, whole milliseconds
--     YIELDS  "1" if the lock goes to who began before that call, and not to the call itself
--     MEMBER  of the list, behind the client id: see handover.lua
--     GETS_MESSAGES    as in acquire.lua
--
-- Returns 1 if all locks were its owner's, or one slot; 0 otherwise.
--
-- A key of another type is not ours. Harmless if repeated or late: a released owner token is never
-- used again.

-- The shortest ways for one lock, before any function, as in acquire.lua: without a waiting call;
-- or with a writer next, as the first call in the list or as the call that would enter it.
if #KEYS == 6 and string.sub(ARGV[2], -4) == " 0 -" then
  local found = redis.call("MGET", KEYS[1], KEYS[4])
  local mine, mark = found[1] == ARGV[1], found[2]
  if not mark and not ARGV[5] then
    return mine and redis.call("DEL", KEYS[1]) or 0
  end
  found = redis.call("MGET", KEYS[2], KEYS[3])
  local seen, record = found[1], found[2]
  local token, life, first = string.match(ARGV[2], "^(%d+) (%d+) (%d+)")
  local popped, member, gets_messages, now = {}, nil, nil, nil
  if mine and seen and #seen == 16 and #token == 16 and seen < token and life ~= "0" and record
    and string.sub(record, 34, 49) <= seen then
    local clock = redis.call("TIME")
    now = string.format("%.0f", clock[1] * 1000000 + clock[2])
    if string.sub(record, 34, 49) > now then
      -- It is in quarantine.
    elseif mark and not ARGV[5] then
      if ARGV[3] then
        redis.pcall("ZREM", KEYS[5], ARGV[3] .. "w" .. ARGV[1])
      end
      popped = redis.pcall("ZPOPMIN", KEYS[5])
      member, gets_messages = popped[1], tonumber(popped[2] or 0) % 1 == 0
    elseif not mark then
      member, gets_messages = string.match(ARGV[5], "^1 %d+ 0 (.*) (%d)$")
      member, gets_messages = member and ARGV[3] .. member, gets_messages == "1"
    end
  end
  if gets_messages and member and string.sub(member, 17, 17) == "w" then
    local channel, value = "quorlock:wake:" .. string.sub(member, 1, 16), string.sub(member, 18)
    -- A full server refuses to begin with SET.
    if (redis.pcall("PUBSUB", "NUMSUB", channel)[2] or 0) ~= 0
      and redis.pcall("SET", KEYS[1], value, "PX", first).ok then
      redis.call("SET", KEYS[2], token, "PX", life)
      local version = string.sub(record, 1, 15)
      redis.pcall("PUBLISH", channel,
        table.concat({ token, version, first, now, "w", #value, value, KEYS[1] }, " "))
      return 1
    end
  end
  if popped[1] then
    redis.pcall("ZADD", KEYS[5], popped[2], popped[1])
  end
end

-- include counter.lua
local next, life, first, raised, keep = string.match(ARGV[2], "^(%d+) (%d+) (%d+) (%d+) (%-?%d*)$")
local has_slots = keep ~= "-"
local n = has_slots and (#KEYS - 3) / 2 or (#KEYS - 1) / 5
local lists = has_slots and 1 or n
local found = redis.call("MGET", unpack(KEYS, 1, 2 * n + 1 + lists))
local ended, has_waiting, mine = 0, ARGV[5], {}
for i = 1, n do
  mine[i] = found[i] == ARGV[1] and i ~= tonumber(keep)
  if mine[i] then
    -- First: a full server runs SET only behind another write.
    redis.call("DEL", KEYS[i])
    -- The raise may have missed this node. Never without our key and never without a counter, as in
    -- extend.lua.
    if raised ~= "0" and (whole(found[n + i]) or math.huge) < tonumber(raised) then
      set_counter(redis.pcall, KEYS[n + i], raised, life)
      found[n + i] = raised
    end
    ended = ended + 1
  end
end
for i = 1, lists do
  has_waiting = has_waiting or found[2 * n + 1 + i]
end

if has_waiting then
  -- include handover.lua
  local which, keep_for, yields, member, gets_messages =
    string.match(ARGV[5] or "", "^(%d+) (%d+) (%d) (.*) (%d)$")
  for i = 1, n do
    local list = has_slots and 1 or i
    local place, enters = 2 * n + 1 + list, list == tonumber(which)
    local keys = { KEYS[i], KEYS[n + i], KEYS[place + lists], KEYS[place],
      KEYS[place + 2 * lists] or KEYS[i] }
    local mark = found[place]
    if i == list and ARGV[3] and mark then
      leave(keys, ARGV[3] .. "w" .. ARGV[1])
    end
    if i == list and enters then
      enter(keys, ARGV[3] .. member, ARGV[4], keep_for, gets_messages, mark)
    end
    if (mark or enters) and (mine[i] or not found[i] or found[i] == SHARED) then
      local me, since = "", math.huge
      if enters and yields == "1" then
        me, since = ARGV[3] .. member, tonumber(ARGV[4])
      end
      hand_over(keys, not mine[i] and found[i], found[n + i], found[2 * n + 1], mark,
        { mine[i] and next or "0", life, first }, me, since)
    end
  end
end
return (has_slots and ended ~= 0 or ended == n) and 1 or 0

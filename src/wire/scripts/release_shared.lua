-- release_shared.lua: ends a reader's entry, and no other; the lock is free when no entry is left.
--
-- KEYS[1]  lock key
-- KEYS[2]  waiting list
-- KEYS[3]  reservation
-- KEYS[4]  readers
-- ARGV[1]  owner token
-- ARGV[2..] as in release.lua, without a counter: member of the waiting list, when the call began, its life, "1" or "0"
--
-- Returns 1 if the entry was ended, 0 if it was already gone.
--
-- A lock key with the owner's own token is that of a writer that meant to become a reader, and the command for that has not
-- come here. A reader that has crashed keeps the lock for no longer than its own entry lasts: the lock key's life is cut to
-- the longest of those that are left, and who waits is told of that.
local me, since, life, told = ARGV[2] or "", ARGV[3], ARGV[4], ARGV[5]
local found = redis.call("MGET", KEYS[1], KEYS[3])
local lock, reservation = found[1], found[2]
local ended, is_free, is_cut = 0, not lock, false
if lock == ARGV[1] then
  ended, is_free = redis.call("DEL", KEYS[1]), true
elseif lock == "quorlock:shared" then
  ended = redis.call("ZREM", KEYS[4], ARGV[1])
  local clock = redis.call("TIME")
  local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local last = redis.call("ZRANGE", KEYS[4], -1, -1, "WITHSCORES")
  local left = last[2] and tonumber(last[2]) - ms or 0
  if left <= 0 then
    redis.call("DEL", KEYS[1], KEYS[4])
    is_free = true
  else
    local before = redis.call("PTTL", KEYS[1])
    if before > left then
      redis.call("PEXPIRE", KEYS[1], left)
      redis.call("PEXPIRE", KEYS[4], left)
    end
    -- A reader that is alive is extended when a third of its life is over.
    is_cut = 3 * left < 2 * before
  end
end
if not reservation and not life then
  return ended
end

-- include reservation.lua
local reserved_for, left, began = "", 0, 0
if reservation then
  reserved_for, left, began = read_reservation(reservation, KEYS[2])
end
local others = reserved_for_others(reserved_for, me)
if life then
  enter(KEYS[2], KEYS[3], me, since, life, told, others)
elseif me ~= "" and not since then
  redis.pcall("ZREM", KEYS[2], me)
end
if others ~= "" then
  if others ~= reserved_for then
    set_reservation(KEYS[3], string.format("%.0f %s %.0f", millis() + left, others, began))
  end
  if redis.pcall("EXISTS", KEYS[2]) == 0 then
    redis.pcall("PEXPIRE", KEYS[3], RESERVATION)
  end
elseif is_free then
  reserve(KEYS[1], KEYS[2], KEYS[3], me, tonumber(since) or math.huge)
else
  end_reservation(KEYS[2], KEYS[3])
  -- The first writer has been told of a longer life. It stays in the list, and asks for how long it is now.
  local first = is_cut and redis.pcall("ZRANGE", KEYS[2], 0, 0)[1]
  if first and not is_reader(first) then
    redis.pcall("PUBLISH", "quorlock:wake:" .. client_of(first), #first > 16 and string.sub(first, 18) or KEYS[1])
  end
end
return ended

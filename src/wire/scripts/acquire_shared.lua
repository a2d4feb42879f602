-- acquire_shared.lua: lets a reader in where no writer holds the lock.
--
-- KEYS[1]  lock key
-- KEYS[2]  fencing counter
-- KEYS[3]  waiting list
-- KEYS[4]  reservation
-- KEYS[5]  record
-- KEYS[6]  readers
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the reader's entry, whole milliseconds, at least 1
-- ARGV[3]  value for a counter that is missing or below the end of the quarantine, a whole number below 2^53
-- ARGV[4]  life of the counter, whole milliseconds; 0 for no end
-- ARGV[5]  edition of the record that the client was greeted with
-- ARGV[6]  as in acquire.lua, where CLIENT is the member of the waiting list. The call stays behind writers that have waited for
--          longer
--
-- Returns -3 if the record has another edition, and nothing was done; otherwise
-- { status, counter, time left, entered, node time }, and with status 0 the holder
--   status     7 granted, and the counter is that of the last writer
--              0 held by a writer
--              3 free or shared, but others come first
--              5 not looked at: the counter is missing or too low, and the value for it is too far ahead of the node time
--             -1 the lock key, the counter or the readers have another type
--             -2 the counter is not a whole number below 2^53
--   counter    7 as it is now; otherwise as it was found, 0 if that is no whole number below 2^53
--   the others as in acquire.lua
--
-- Readers: a sorted set with the owner token of each, scored by when its entry ends, in milliseconds of this node's clock. The
-- lock key is the truth, and the set its detail: an entry counts only while the lock key says that the lock is shared. So
-- whoever makes it shared deletes the set first, and one that was left over revives no reader. The lock key lives for at
-- least as long as each entry: here and in extend_shared.lua its life only grows.

-- How many members of the waiting list one run looks at.
local SEEN_MAX = 1000

local clock = redis.call("TIME")
local now, ms = clock[1] * 1000000 + clock[2], clock[1] * 1000 + math.floor(clock[2] / 1000)
local lock, counter, reservation, record = unpack(redis.call("MGET", KEYS[1], KEYS[2], KEYS[4], KEYS[5]))
if not record or string.sub(record, 1, 15) ~= ARGV[5] then
  return -3
end
local ttl, tell_readers = tonumber(ARGV[2]), nil
-- include counter.lua
if reservation or lock and lock ~= "quorlock:shared" then
  -- include reservation.lua
  local call_began, life, me, told = string.match(ARGV[6], "^(%d+) (%d*) (.*) (%d)$")
  local reserved_for, left, began = "", 0, 0
  if reservation then
    reserved_for, left, began = read_reservation(reservation, KEYS[3], now)
  end
  local others = reserved_for_others(reserved_for, me)
  -- A reader for which the lock is reserved comes in, and so does one whose entry stands already: the command was executed
  -- twice.
  local comes_in = others ~= reserved_for
  if lock and not comes_in then
    local score = tonumber(redis.pcall("ZSCORE", KEYS[6], ARGV[1]))
    comes_in = score and score > ms
  end

  -- The answer to a call that is not let in. It enters the waiting list in the same step, so that no release after this is
  -- missed.
  local function refuse(status, time_left, holder)
    local entered = 0
    if life ~= "" then
      if others ~= "" and others ~= reserved_for then
        set_reservation(KEYS[4], string.format("%.0f %s %.0f", ms + left, others, began))
      end
      entered = enter(KEYS[3], KEYS[4], me, call_began, life, told, others)
    end
    return { status, whole(counter) or 0, time_left, entered, now, holder }
  end

  -- The first writer in the list that is still there, if it began before `limit`, and when that was. Those that are gone are
  -- removed. Without the command that asks who listens, readers pass the writers: that costs these their order, but nobody
  -- waits for a client that is gone.
  local function writer_before(limit)
    local gone, size, at, writer, writer_began = {}, 1, 0, nil, 0
    repeat
      local some = redis.pcall("ZRANGE", KEYS[3], at, at + size - 1, "WITHSCORES")
      local is_done = #some < 2 * size
      for i = 1, #some, 2 do
        local entered = tonumber(some[i + 1])
        if limit <= entered then
          is_done = true
          break
        end
        if not is_reader(some[i]) then
          local heard = entered % 1 == 0 and redis.pcall("PUBSUB", "NUMSUB", "quorlock:wake:" .. client_of(some[i]))
          if heard and heard[2] == 0 then
            gone[#gone + 1] = some[i]
          else
            is_done = true
            if not heard or heard[2] then
              writer, writer_began = some[i], entered
            end
            break
          end
        end
      end
      at = at + size
      size = math.min(size * 8, SEEN_MAX - at)
    until is_done or size <= 0
    if #gone > 0 then
      redis.pcall("ZREM", KEYS[3], unpack(gone))
    end
    return writer, writer_began
  end

  if lock and lock ~= SHARED then
    local named = #lock <= 96 and select(2, string.find(lock, "^%x+ ")) == 33 and not string.find(lock, "\r\n%p")
    return refuse(0, redis.call("PTTL", KEYS[1]), named and string.sub(lock, 34) or "")
  end

  local limit = tonumber(call_began)
  local is_for_writer = reserved_for ~= "" and string.sub(reserved_for, 1, 1) ~= "*"
  if comes_in then
    -- Nobody stands before it.
  elseif not lock and is_for_writer then
    return refuse(3, left)
  else
    local writer, writer_began = writer_before(limit)
    if writer and not lock and reserved_for == "" then
      reserved_for, left = reserve(KEYS[1], KEYS[3], KEYS[4], me, limit)
      others = reserved_for
      return refuse(3, left)
    elseif writer then
      if writer_began % 1 ~= 0 and reserved_for == "" then
        -- It polls, and nobody knows whether it is still there. If it does not come for so long, it is removed: see
        -- read_reservation.
        set_reservation(KEYS[4], string.format("%.0f %s %.0f", ms + RESERVATION, writer, writer_began))
        reserved_for, others = writer, writer
      end
      return refuse(3, RESERVATION)
    end
  end

  -- To be called when the lock is shared: readers that wait can come in as well.
  tell_readers = function()
    if me ~= "" then
      redis.pcall("ZREM", KEYS[3], me)
    end
    if not is_for_writer then
      reserve(KEYS[1], KEYS[3], KEYS[4], "", math.huge, others)
    end
  end
end

local seen, wrong = read_counter(KEYS[2], counter)
if wrong then
  return { wrong, 0, 0, 0, now }
end
-- include record.lua
local is_lost = not counter or seen < quarantine_end(record)
if is_lost then
  seen = tonumber(ARGV[3])
  if seen > now + ahead_max(record) then
    return { 5, 0, 0, 0, now }
  end
  seen = math.max(seen, quarantine_end(record))
end

local lasts = ttl
if lock then
  lasts = redis.call("PTTL", KEYS[1])
  -- Entries that are over go here. So a release needs no command for it that an access list may forbid.
  redis.call("ZREMRANGEBYSCORE", KEYS[6], "-inf", string.format("%.0f", ms))
else
  -- Before anything is set. PEXPIRE of a missing set shows only whether the access list permits it: no set is left without
  -- an end.
  redis.call("DEL", KEYS[6])
  redis.call("PEXPIRE", KEYS[6], ttl)
  if not redis.call("SET", KEYS[1], "quorlock:shared", "NX", "PX", ttl) then
    return { -1, 0, 0, 0, now }
  end
end
-- A command that is executed for the second time gives the entry no longer life.
local added = redis.pcall("ZADD", KEYS[6], "NX", string.format("%.0f", ms + ttl), ARGV[1])
if type(added) ~= "number" then
  if not lock then
    redis.call("DEL", KEYS[1])
  end
  return string.find(added.err, "WRONGTYPE", 1, true) and { -1, 0, 0, 0, now } or added
end
if added == 1 then
  if lasts >= 0 and lasts < ttl then
    lasts = ttl
    redis.call("PEXPIRE", KEYS[1], ttl)
  end
  -- No entry lasts for two hours. A lock without an end is one to which somebody else has done that.
  redis.call("PEXPIRE", KEYS[6], lasts < 0 and 7200000 or lasts)
end

if is_lost then
  set_counter(redis.call, KEYS[2], string.format("%.0f", seen), ARGV[4])
elseif ARGV[4] ~= "0" then
  redis.call("PEXPIRE", KEYS[2], ARGV[4])
end

if tell_readers then
  tell_readers()
end
return { 7, seen, 0, 0, now }

-- handover.lua: hands free locks over to waiting calls, and keeps the waiting lists. Included in
-- the scripts that grant and free locks, after counter.lua, if calls may wait.
--
-- Waiting list: a sorted set with one member per waiting call, scored by the start of the call,
-- microseconds since 1970: the same order on all nodes. A call that polls, because its connection
-- gets no messages, has half a microsecond more. A member is the client's id (16 hex digits), "w"
-- or "r" for a writer or reader, and the value for the lock key or the reader's entry: the call's
-- owner token (32 hex digits), and its label.
--
-- Mark: a string that exists while a call may wait, so that the shortest ways need one command to
-- see that none does. Its value is the time until which a polling writer keeps readers out,
-- milliseconds since 1970; "" for none.
--
-- A free lock is handed over to the first live call, for a short life: the key gets its value, the
-- counter gets the token offered by the releasing or acquiring call, and the client gets a message.
-- That is a grant like any other, and the call counts it as this node's answer to its last acquire.
-- If that is not enough, the call acquires again with the same owner token: the key is its own and
-- gets its full life. Readers before the first writer get the lock together, with an unchanged
-- counter.
--
-- The list decides who comes first, and the key who holds the lock. If an access list forbids one
-- of these commands, or a key has another type, calls wait without the list.
--
-- The message: "TOKEN VERSION LIFE TIME KIND LENGTH VALUE KEY". TOKEN is 0 if the counter differs;
-- TIME is the node time, microseconds since 1970; KIND is "w" or "r"; LENGTH is that of VALUE. A
-- client with the call of a writer in the list that keeps readers out gets a question, of KIND "q":
-- nothing was handed over, and a missing call leaves the list.

-- The value of the lock key while readers share it.
local SHARED = "quorlock:shared"
-- Largest number of calls removed from the list per run. Each takes a server about a microsecond.
local REMOVED_MAX = 1000
-- Time for which a polling writer keeps readers out: milliseconds.
local POLLS = 1000

local function micros()
  local clock = redis.call("TIME")
  return clock[1] * 1000000 + clock[2]
end

local function millis()
  return math.floor(micros() / 1000)
end

-- Puts back the last popped call. If it was the only one, its list is a new key and gets the life
-- of the mark: both were made together.
local function put_back(keys, began, member)
  redis.pcall("ZADD", keys[3], began, member)
  if redis.pcall("PTTL", keys[3]) == -1 then
    local left = redis.call("PTTL", keys[4])
    redis.pcall("PEXPIRE", keys[3], math.max(left, POLLS))
  end
end

-- Hands a lock over to the first live call, or to all readers before the first writer; but to none
-- after the call `me`, which began at `since`.
--   keys    lock key, counter, waiting list, mark, readers
--   owner   value of the lock key; false or nil for a free lock. A shared lock admits readers
--   seen    value of the counter
--   offer   offered token, as text; life of the counter; life of a handed-over lock: milliseconds
-- Returns the value of the lock key then, "" if more dead calls are before `me` than one run
-- removes; and whether a writer is, or may be, before `me`.
--
-- A server in quarantine, or without a record, hands nothing over: its vote would not count, and
-- the holder could not heal the lock there.
local function hand_over(keys, owner, seen, record, mark, offer, me, since)
  local finish, now = string.sub(record or "", 34, 49), micros()
  if (tonumber(finish) or math.huge) > now then
    return owner
  end
  local has_more = false
  for removed = 1, REMOVED_MAX do
    local popped = redis.pcall("ZPOPMIN", keys[3])
    local member, began = popped[1], tonumber(popped[2])
    if not member then
      redis.pcall("DEL", keys[4])
      break
    end
    if since < began or since == began and me <= member then
      put_back(keys, popped[2], member)
      break
    end
    local kind, polls = string.sub(member, 17, 17), began % 1 ~= 0
    local channel, value = "quorlock:wake:" .. string.sub(member, 1, 16), string.sub(member, 18)
    local token = "0"
    local function publish(kind)
      return redis.pcall("PUBLISH", channel, table.concat({ token, string.sub(record, 1, 15),
        offer[3], string.format("%.0f", now), kind, #value, value, keys[1] }, " "))
    end
    -- Not the number of those who get a message: subscribers of patterns are among them.
    local heard = polls and 1 or redis.pcall("PUBSUB", "NUMSUB", channel)[2]
    if owner and kind ~= "r" then
      -- A writer behind readers. If the access list forbids to read the listeners, readers pass it.
      if polls and (tonumber(mark) or 0) <= millis() then
        heard = 0
      end
      if heard ~= 0 then
        if me ~= "" then
          publish("q")
        end
        put_back(keys, popped[2], member)
        return owner, heard ~= nil
      end
    elseif (heard or redis.pcall("PUBLISH", channel, "")) ~= 0 then
      -- A missing counter, or one below the end of the quarantine, counts as that end. Readers get
      -- the counter unchanged.
      if kind == "r" then
        token = seen and #seen == 16 and finish <= seen and seen or "0"
      elseif #offer[1] == 16 and finish < offer[1]
        and (not seen or #seen == 16 and seen < offer[1]) then
        token = offer[1]
      end
      if not owner then
        if kind == "r" then
          redis.call("DEL", keys[5])
        end
        -- Never a key of another type.
        owner = kind == "r" and SHARED or value
        local set = redis.pcall("SET", keys[1], owner, "NX", "PX", offer[3])
        if not set or not set.ok then
          put_back(keys, popped[2], member)
          owner = nil
          break
        end
      end
      if kind == "r" then
        local lasts, first = redis.call("PTTL", keys[1]), tonumber(offer[3])
        if lasts >= 0 and lasts < first then
          lasts = first
          redis.call("PEXPIRE", keys[1], lasts)
        end
        -- Never shorter: a reader that was refused here, and is in the list, may have got its entry
        -- by an extension.
        redis.call("ZADD", keys[5], "GT", string.format("%.0f", millis() + first), value)
        -- As in acquire_shared.lua.
        redis.call("PEXPIRE", keys[5], lasts < 0 and 7200000 or lasts)
      elseif token ~= "0"
        and type(set_counter(redis.pcall, keys[2], token, offer[2])) == "table" then
        -- A counter of another type orders no tokens: the call acquires and gets the error.
        token = "0"
      end
      publish(kind)
      if kind ~= "r" then
        return owner
      end
    end
    has_more = removed == REMOVED_MAX
  end
  return owner or has_more and "" or nil, has_more
end

-- Removes a call from the list. There is no mark without a list.
local function leave(keys, member)
  redis.pcall("ZREM", keys[3], member)
  if redis.call("EXISTS", keys[3]) == 0 then
    redis.call("DEL", keys[4])
  end
end

-- Enters a call in the list for `life` milliseconds; `gets_messages` is "1" if it gets messages
-- over this connection. `keeps_out`: what the mark says from then on. Returns 1 if that was done.
-- No list is left without an end where the access list forbids to give it one.
local function enter(keys, member, since, life, gets_messages, keeps_out)
  local kept = redis.pcall("PTTL", keys[3])
  local permitted = kept ~= -2 or type(redis.pcall("PEXPIRE", keys[3], life)) == "number"
  if type(kept) ~= "number" or not permitted then
    return 0
  end
  local score = gets_messages == "1" and since or since .. ".5"
  if type(redis.pcall("ZADD", keys[3], score, member)) ~= "number" then
    return 0
  end
  if kept < tonumber(life) then
    redis.call("PEXPIRE", keys[3], life)
    kept = life
  end
  redis.call("SET", keys[4], keeps_out or "", "PX", kept)
  return 1
end

-- The label in a lock's value, after the random part, which stays secret; "" without one.
local function label_in(value)
  local named = #value <= 96 and select(2, string.find(value, "^%x+ ")) == 33
    and not string.find(value, "\r\n%p")
  return named and string.sub(value, 34) or ""
end

-- canary.lua: whether the node remembers. Included in greet.lua, and in acquire.lua and extend.lua for the case that a lock
-- has no fencing counter: it may be new, or the node has lost everything that it had stored.
--
-- Canary: a key without expiry. It is gone with everything else after a flush, an emptied disk, or when another server
-- stands behind the address; and it names the process that keeps it, so a copy of it proves nothing. Its value:
--
--   FORMAT SINCE RUN_ID DAY LONGEST BEFORE ORIGIN
--
--   FORMAT   1. Later formats begin with the same seven fields; what is behind them is kept as it is
--   SINCE    since when that process has been keeping what it was told, microseconds since 1970; 0 for ever
--   RUN_ID   which process that is, as INFO says; "?" if it did not
--   DAY      of the two numbers behind it: days since 1970
--   LONGEST  the longest silence that a client of that day asks for, milliseconds: the longest ttl in use, and its margin
--   BEFORE   the same of the day before
--   ORIGIN   what there was when it began: "new", nothing; "old", what another process had kept; "vouched", nothing, and
--            somebody who knows has said that nothing was lost
--
-- "0" alone is an operator's word: the server is new, and nobody holds a lock. Anything else is no canary.
--
-- It is passed as a key like all others: some servers refuse a key that was not.

-- What is needed to read and write one, made where it is needed: names that are new look at the canary and no more.
local function canaries()
  local DAY = 86400000000
  -- No client asks for more: milliseconds. Of what is not ours no more is believed.
  local LONGEST = 7200000

  -- A whole number in few enough digits to be exact.
  local function digits(text)
    return text and #text <= 16 and tonumber(text) or nil
  end

  -- Which process this is.
  local function process()
    local info = redis.pcall("INFO", "server")
    return type(info) == "string" and string.match(info, "[\r\n]run_id:(%w+)") or "?"
  end

  -- What the canary says, and what it said before nobody had asked for less on the days that count: a table, without `since`
  -- if there is none.
  local function read_canary(canary, now)
    local found = redis.pcall("GET", canary)
    found = type(found) == "string" and found or ""
    local today = math.floor(now / DAY)
    local it = { found = found, day = today, longest = 0, before = 0, format = "1", origin = "new", rest = "" }
    if found == "0" then
      it.since, it.is_word = 0, true
      return it
    end
    local format, since, run, day, longest, before, origin, rest =
      string.match(found, "^(%d+) (%d+) ([%w%?]+) (%d+) (%d+) (%d+) (%l+)(.*)$")
    since, day, longest, before = digits(since), digits(day), digits(longest), digits(before)
    if not (since and day and longest and before) then
      return it
    end
    it.since, it.run, it.format, it.origin, it.rest = since, run, format, origin, rest
    longest, before = math.min(longest, LONGEST), math.min(before, LONGEST)
    if day == today - 1 then
      it.before = longest
    elseif day >= today then
      -- Of a day to come: the clock was set back, and says nothing about how long that was ago.
      it.longest, it.before = longest, before
    end
    return it
  end

  -- Begins anew: as of now this process keeps what it is told.
  local function begin_anew(it, now, run)
    it.origin = it.since and "old" or "new"
    it.since, it.run, it.format, it.rest = now, run, "1", ""
  end

  -- Writes it, with `call`, where that changes anything. Returns whether it stands there now.
  local function write_canary(canary, it, call)
    local value = string.format(
      "%s %.0f %s %.0f %.0f %.0f %s%s",
      it.format, it.since, it.run, it.day, it.longest, it.before, it.origin, it.rest)
    if value == it.found then
      return true
    end
    return call("SET", canary, value).ok ~= nil
  end

  return read_canary, begin_anew, write_canary, process, LONGEST
end

-- For how many milliseconds the node has to be silent so that it has been keeping everything for `length` milliseconds, or
-- for as long as others ask for; and when that is, or was, in microseconds since 1970.
local function silent_for(canary, now, length)
  -- What nearly everybody finds: it is older than all that anybody needs, whether or not that was long ago.
  local found = redis.pcall("GET", canary)
  local old, longest, before
  if type(found) == "string" then
    old, longest, before = string.match(found, "^%d+ (%d+) [%w%?]+ %d+ (%d+) (%d+) %l")
  end
  if old and #old <= 16 and #longest <= 7 and #before <= 7 then
    local needed = math.max(length, tonumber(longest), tonumber(before))
    local silent_until = tonumber(old) + needed * 1000
    if silent_until <= now then
      return 0, silent_until
    end
  end

  local read_canary, begin_anew, write_canary, process = canaries()
  local it = read_canary(canary, now)
  -- In the future: the clock was set back.
  if not it.since or it.since > now then
    it.longest = math.max(it.longest, length)
    begin_anew(it, now, process())
    write_canary(canary, it, redis.pcall)
  end
  length = math.max(length, it.longest, it.before)
  return math.max(0, length - math.floor((now - it.since) / 1000)), it.since + length * 1000
end

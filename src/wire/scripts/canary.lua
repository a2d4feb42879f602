-- canary.lua: whether the node still has its data. Included in greet.lua, and in acquire.lua and extend.lua for a lock
-- without a fencing counter: the lock may be new, or the node has lost all its data.
--
-- Canary: a key without expiry. It is gone with all other data after a flush, with an emptied disk, or when another server
-- has taken over the address. It names the process that keeps it, so a copy of it proves nothing. Its value:
--
--   FORMAT SINCE RUN_ID DAY LONGEST BEFORE ORIGIN
--
--   FORMAT   1. Later formats begin with the same seven fields; what follows them is kept as it is
--   SINCE    since when that process has kept all data, microseconds since 1970; 0 for ever
--   RUN_ID   the run id of that process, from INFO; "?" if INFO does not tell. Of one that was promoted, the id of its
--            replication behind it
--   DAY      the day of LONGEST, days since 1970
--   LONGEST  the longest quarantine that a client asked for on that day, milliseconds: the longest ttl in use, and its margin
--   BEFORE   the same for the day before
--   ORIGIN   what the process began with: "new", no data; "old", the data of another process; "vouched", no data, and an
--            operator has said that nothing was lost
--
-- "0" alone is an operator's statement: the server is new, and nobody holds a lock. Anything else is no canary.
--
-- It is passed in KEYS like all other keys: some servers refuse scripts that touch a key that was not passed.

-- The functions to read and write a canary. Made on demand: an acquire of a new name only matches the canary's text.
local function canaries()
  local DAY = 86400000000
  -- No client asks for more: milliseconds. A larger number in the canary counts as this one.
  local LONGEST = 7200000

  -- A whole number in few enough digits to be exact.
  local function digits(text)
    return text and #text <= 16 and tonumber(text) or nil
  end

  -- The run id of this process. One that was a replica and was promoted is another since: it may have missed what its
  -- master was told, and be the one whose canary that master had taken over.
  local function process()
    local function field(section, pattern)
      local info = redis.pcall("INFO", section)
      return type(info) == "string" and string.match(info, "[\r\n]" .. pattern) or nil
    end
    local run = field("server", "run_id:(%w+)")
    local promoted = run and field("replication", "second_repl_offset:(%d+)")
    return run and run .. (promoted and field("replication", "master_replid:(%w+)") or "") or "?"
  end

  -- Whether `run` is the process that the canary names. Without replicas a promoted one forgets after an hour that it was.
  local function is_kept_by(it, run)
    return run == "?" or run == it.run or run == string.sub(it.run, 1, #run)
  end

  -- The fields of the canary as a table, with the two longest quarantines moved to today and yesterday; without `since` if
  -- there is no canary.
  local function read_canary(canary, now)
    local found = redis.pcall("GET", canary)
    found = type(found) == "string" and found or ""
    local today = math.floor(now / DAY)
    local it = { found = found, day = today, longest = 0, before = 0, format = "1", origin = "new", rest = "" }
    if found == "0" then
      it.since, it.is_statement = 0, true
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
      -- Of a future day: the clock was set back, so the age of these numbers is unknown.
      it.longest, it.before = longest, before
    end
    return it
  end

  -- From now on this process keeps all data.
  local function begin_anew(it, now, run)
    it.origin = it.since and "old" or "new"
    it.since, it.run, it.format, it.rest = now, run, "1", ""
  end

  -- Writes the canary with `call` if its value changes. Returns whether the value is stored now.
  local function write_canary(canary, it, call)
    local value = string.format(
      "%s %.0f %s %.0f %.0f %.0f %s%s",
      it.format, it.since, it.run, it.day, it.longest, it.before, it.origin, it.rest)
    if value == it.found then
      return true
    end
    return call("SET", canary, value).ok ~= nil
  end

  return read_canary, begin_anew, write_canary, process, is_kept_by, LONGEST
end

-- How many milliseconds of the quarantine are left, which lasts until the node has kept all data for `length` milliseconds,
-- or for longer if another client asks for longer; and when it ends, or ended, in microseconds since 1970.
local function quarantine_left(canary, now, length)
  -- The common case: old enough for both numbers, whichever days they are of.
  local found = redis.pcall("GET", canary)
  local old, longest, before
  if type(found) == "string" then
    old, longest, before = string.match(found, "^%d+ (%d+) [%w%?]+ %d+ (%d+) (%d+) %l")
  end
  if old and #old <= 16 and #longest <= 7 and #before <= 7 then
    local needed = math.max(length, tonumber(longest), tonumber(before))
    local quarantine_until = tonumber(old) + needed * 1000
    if quarantine_until <= now then
      return 0, quarantine_until
    end
  end

  local read_canary, begin_anew, write_canary, process = canaries()
  local it = read_canary(canary, now)
  -- A time in the future: the clock was set back.
  if not it.since or it.since > now then
    it.longest = math.max(it.longest, length)
    begin_anew(it, now, process())
    write_canary(canary, it, redis.pcall)
  end
  length = math.max(length, it.longest, it.before)
  return math.max(0, length - math.floor((now - it.since) / 1000)), it.since + length * 1000
end

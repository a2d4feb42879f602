-- canary.lua: whether the node remembers. Included in acquire.lua and extend.lua, for the case that a lock has no
-- fencing counter: it may be new, or the node has lost everything that it had stored.
--
-- Canary: a key without expiry that holds since when the node has been keeping what it was told, in microseconds since
-- 1970. It is gone with everything else after a flush, an emptied disk, or when another server stands behind the address.
-- It is passed as a key like all others: some servers refuse a key that was not.

-- For how many milliseconds the node has to be silent so that it has been keeping everything for `length` milliseconds;
-- and when that is, or was, in microseconds since 1970.
local function silent_for(canary, now, length)
  local since = redis.pcall("GET", canary)
  since = type(since) == "string" and #since <= 16 and string.find(since, "^%d+$") and tonumber(since)
  -- In the future: the clock was set back, and says nothing about how long that was ago.
  if not since or since > now then
    redis.call("SET", canary, string.format("%.0f", now))
    since = now
  end
  return math.max(0, length - math.floor((now - since) / 1000)), since + length * 1000
end

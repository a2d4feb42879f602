-- counter.lua: fencing counters. Included in the scripts that read or set them.

-- `found` as a whole number below 2^53; nil for any other value.
local function whole(found)
  local number = type(found) == "string" and #found <= 16
    and string.find(found, "^%d+$") and tonumber(found)
  return number and number < 9007199254740992 and number or nil
end

-- The number of the counter that was `found` under `key`, 0 if there is none; or nil, and why it is
-- no number: -1 for a key of another type, -2 for another value.
local function read_counter(key, found)
  local number = whole(found)
  if number then
    return number
  elseif found then
    return nil, -2
  elseif redis.call("EXISTS", key) == 1 then
    return nil, -1
  end
  return 0
end

-- Sets a counter for `life` whole milliseconds, 0 for no expiry; returns the old value. Stores the
-- text as sent: a number formatted by the script loses digits. `call`: redis.pcall to return an
-- error, redis.call to end the script.
local function set_counter(call, key, value, life)
  if life == "0" then
    return call("SET", key, value, "GET")
  end
  return call("SET", key, value, "PX", life, "GET")
end

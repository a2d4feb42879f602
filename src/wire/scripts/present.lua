-- present.lua: which of these keys are there. Changes nothing.
--
-- KEYS[1], …  lock keys
--
-- Returns a digit for each: 1 if it is there, 0 if not.
local digits = {}
for i, key in ipairs(KEYS) do
  digits[i] = redis.call("EXISTS", key)
end
return table.concat(digits)

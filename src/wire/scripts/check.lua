-- check.lua: checks whether the server accepts writes. Changes nothing.
--
-- KEYS[1]  record
--
-- Returns the server's time, as TIME does; an error if it refuses writes, or forbids them to this user.
if redis.call("EXISTS", KEYS[1]) == 1 then
  redis.call("SET", KEYS[1], "", "NX")
else
  redis.call("SET", KEYS[1], "", "XX")
end
return redis.call("TIME")

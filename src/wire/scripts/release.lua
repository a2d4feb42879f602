-- release.lua: deletes a lock that its owner holds, and nothing else.
--
-- KEYS[1]  lock key
-- ARGV[1]  owner token
--
-- Returns 1 if deleted, 0 if gone already or someone else's.
--
-- A key of another type is an error, and not ours either. Harmless when repeated, and when it arrives late: the token
-- of another round is another one.
if redis.call("GET", KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call("DEL", KEYS[1])

-- reply.lua: the reply of a lock script if a single number is not enough, without a time left: see
-- acquire.lua.
local function reply(status, counter, which, text)
  return { status, counter, 0, 0, now, which or 0, text or "" }
end

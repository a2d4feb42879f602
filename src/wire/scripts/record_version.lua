-- record_version.lua: a script does nothing where the record has another version than the client connected with: see record.lua.
if not record or string.sub(record, 1, 15) ~= ARGV[5] then
  return -3
end

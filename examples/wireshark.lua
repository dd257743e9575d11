-- Wireshark and tshark read our packets with this: data datagrams (UDP), control messages (TCP, or pieces of
-- their stream in UDP).
--
--   tshark -X lua_script:examples/wireshark.lua -r server.pcap -Y bl_control
--   wireshark -X lua_script:examples/wireshark.lua server.pcap
--
-- Filters: bl_data.transfer == 28, bl_control.type == "STOP", bl_control.arrived < 10, ...
-- The formats are those of testbed/transport: wire.py, messages.py and control_datagrams.py. Other ports are
-- chosen in Wireshark with "Decode As". Over TLS the control connection shows as what it is: not readable.

local VERSION = 6
local HEADER_BYTES, DATA_HEADER_BYTES, PIECE_HEADER_BYTES = 12, 16, 36
local TRAILER_BYTES = 16
local CONTROL_PORTS, DATA_PORTS = "46990-46999", "47000-47999"
local TYPES = {
  [1] = "HELLO", [2] = "WELCOME", [3] = "REFUSED", [4] = "PROBE", [5] = "BITMAP", [6] = "STOP", [7] = "ANNOUNCE",
  [8] = "ACK", [9] = "LATE_BITMAP", [10] = "READY", [11] = "HOLD", [12] = "PING", [13] = "PONG", [14] = "FAILED",
  [15] = "ENERGY", [17] = "PIECE",
}
local CODECS = { [0] = "float32", [1] = "bfloat16", [2] = "float16", [3] = "int8", [4] = "int4", [5] = "one-bit" }
local OF_A_TRANSFER = { PROBE = 1, BITMAP = 1, STOP = 1, ACK = 1, LATE_BITMAP = 1, HOLD = 1, ENERGY = 1 }
local NO_ECHO = 65535

local data = Proto("bl_data", "Bounded-loss data")
local control = Proto("bl_control", "Bounded-loss control")
local piece = Proto("bl_piece", "Bounded-loss control in datagrams")

local h = {
  session = ProtoField.uint32("bl_piece.session", "Session", base.HEX),
  number = ProtoField.uint64("bl_piece.number", "Number, and two flags below it", base.DEC),
  asks = ProtoField.bool("bl_piece.asks", "Asks for a reply", 8, nil, 0x1),
  again = ProtoField.bool("bl_piece.again", "Its bytes went before", 8, nil, 0x2),
  echo = ProtoField.uint64("bl_piece.echo", "One above the newest number that came", base.DEC),
  received = ProtoField.uint64("bl_piece.received", "Bytes received of the other stream", base.DEC),
  first = ProtoField.uint64("bl_piece.first", "Place of the piece in its stream", base.DEC),
  bytes = ProtoField.bytes("bl_piece.bytes", "Piece"),
  trailer = ProtoField.bytes("bl_piece.trailer", "Trailer"),
}
piece.fields = h
local piece_short = ProtoExpert.new("bl_piece.short", "Shorter than its header", expert.group.MALFORMED, expert.severity.ERROR)
piece.experts = { piece_short }

local d = {
  session = ProtoField.uint32("bl_data.session", "Session", base.HEX),
  sequence = ProtoField.uint32("bl_data.sequence", "Chunk", base.DEC, nil, 0x03ffffff),
  turn = ProtoField.uint32("bl_data.turn", "Turn of the send index, modulo 2^6", base.DEC, nil, 0xfc000000),
  transfer = ProtoField.uint32("bl_data.transfer", "Transfer", base.DEC),
  length = ProtoField.uint16("bl_data.length", "Bytes of payload", base.DEC),
  ack_requested = ProtoField.bool("bl_data.ack_requested", "ACK requested", 16, nil, 0x8000),
  send_index = ProtoField.uint16("bl_data.send_index", "Send index, modulo 2^15", base.DEC, nil, 0x7fff),
  payload = ProtoField.bytes("bl_data.payload", "Payload"),
  rest = ProtoField.bytes("bl_data.rest", "Padding, and the seal if there is one"),
}
data.fields = d
local short = ProtoExpert.new("bl_data.short", "Shorter than its header", expert.group.MALFORMED, expert.severity.ERROR)
data.experts = { short }

local c = {
  type = ProtoField.uint8("bl_control.type", "Type", base.DEC, TYPES),
  version = ProtoField.uint8("bl_control.version", "Version", base.DEC),
  reserved = ProtoField.uint16("bl_control.reserved", "Reserved", base.DEC),
  transfer = ProtoField.uint32("bl_control.transfer", "Transfer", base.DEC),
  length = ProtoField.uint32("bl_control.length", "Bytes of body", base.DEC),
  session = ProtoField.uint32("bl_control.session", "Session", base.HEX),
  data_port = ProtoField.uint16("bl_control.data_port", "Data port", base.DEC),
  cipher = ProtoField.uint8("bl_control.cipher", "Cipher", base.DEC, { [0] = "BLAKE2b", [1] = "AES-256-GCM" }),
  name = ProtoField.string("bl_control.name", "Name", base.UNICODE),
  terms = ProtoField.string("bl_control.terms", "Terms", base.UNICODE),
  codec = ProtoField.uint8("bl_control.codec", "Codec", base.DEC, CODECS),
  layout = ProtoField.bytes("bl_control.layout", "Layout"),
  key = ProtoField.bytes("bl_control.key", "Key"),
  reason = ProtoField.string("bl_control.reason", "Reason", base.UNICODE),
  sent = ProtoField.uint32("bl_control.sent", "Datagrams sent so far", base.DEC),
  pass = ProtoField.uint32("bl_control.pass", "Pass", base.DEC),
  pass_ends = ProtoField.bool("bl_control.pass_ends", "The pass ends here"),
  form = ProtoField.uint8("bl_control.form", "Form", base.DEC, { [0] = "range", [1] = "list" }),
  first = ProtoField.uint32("bl_control.first", "First", base.DEC),
  bits = ProtoField.bytes("bl_control.bits", "Bits, lowest first"),
  chunk = ProtoField.uint32("bl_control.chunk", "Chunk", base.DEC),
  arrived = ProtoField.uint32("bl_control.arrived", "Arrived (counted)", base.DEC),
  echo = ProtoField.uint16("bl_control.echo", "Latest arrival", base.DEC),
  held_us = ProtoField.uint32("bl_control.held_us", "Its age, in microseconds", base.DEC),
  probed = ProtoField.uint32("bl_control.probed", "Sent before the latest PROBE", base.DEC),
  at_once = ProtoField.bool("bl_control.at_once", "Answers a PROBE without delay", 16, nil, 0x0001),
  energy = ProtoField.bytes("bl_control.energy", "Energy level of each chunk"),
  must = ProtoField.uint32("bl_control.must", "Chunks that must arrive (counted)", base.DEC),
  content = ProtoField.bytes("bl_control.content", "Content"),
}
control.fields = c
local wrong = ProtoExpert.new("bl_control.wrong", "No message begins here", expert.group.MALFORMED, expert.severity.WARN)
local body_wrong = ProtoExpert.new("bl_control.body_wrong", "Body too short for its type", expert.group.MALFORMED, expert.severity.ERROR)
control.experts = { wrong, body_wrong }

local function counted(tree, field, value)
  tree:add(field, value):set_generated()
end

function data.dissector(tvb, pinfo, tree)
  pinfo.cols.protocol = "BL-DATA"
  local subtree = tree:add(data, tvb())
  if tvb:len() < DATA_HEADER_BYTES then
    subtree:add_proto_expert_info(short)
    return tvb:len()
  end
  subtree:add(d.session, tvb(0, 4))
  subtree:add(d.sequence, tvb(4, 4))
  subtree:add(d.turn, tvb(4, 4))
  subtree:add(d.transfer, tvb(8, 4))
  subtree:add(d.length, tvb(12, 2))
  subtree:add(d.ack_requested, tvb(14, 2))
  subtree:add(d.send_index, tvb(14, 2))
  -- Captures of runs hold the headers of data alone: of the chunk there may be less, or nothing.
  local there = tvb:len() - DATA_HEADER_BYTES
  local payload = math.min(there, tvb(12, 2):uint())
  if payload > 0 then subtree:add(d.payload, tvb(DATA_HEADER_BYTES, payload)) end
  if there > payload then subtree:add(d.rest, tvb(DATA_HEADER_BYTES + payload)) end
  pinfo.cols.info = string.format("transfer %u chunk %u (%u bytes, sent as %u)", tvb(8, 4):uint(), tvb(4, 4):uint(),
    tvb(12, 2):uint(), tvb(14, 2):uint() % 0x8000)
  return tvb:len()
end

local function ones(range, least)
  local bytes, found = range:bytes(), 0
  for at = 0, bytes:len() - 1 do
    local byte = bytes:get_index(at)
    if least then
      if byte >= least then found = found + 1 end
    else
      while byte > 0 do
        found = found + byte % 2
        byte = math.floor(byte / 2)
      end
    end
  end
  return found
end

-- How each type's body is read: the least bytes that it has, and a function of the body, which may add to the info.
local function text(body, tree)
  if body:len() == 0 then return end
  tree:add_packet_field(c.reason, body, ENC_UTF_8)
  return body:string(ENC_UTF_8)
end

local function arrivals(body, tree)
  tree:add(c.form, body(0, 1))
  local found
  if body(0, 1):uint() == 0 and body:len() > 5 then
    tree:add(c.first, body(1, 4))
    tree:add(c.bits, body(5))
    found = ones(body(5))
  else
    found = math.floor((body:len() - 1) / 4)
    for at = 0, found - 1 do tree:add(c.chunk, body(1 + 4 * at, 4)) end
  end
  counted(tree, c.arrived, found)
  return found .. " arrived"
end

local BODIES = {
  HELLO = { 11, function(body, tree)
    local name, terms = body(6, 2):uint(), body(8, 2):uint()
    tree:add(c.session, body(0, 4))
    tree:add(c.data_port, body(4, 2))
    tree:add(c.cipher, body(10, 1))
    local rest = 11 + name + terms
    if body:len() < rest then return nil, true end
    if name > 0 then tree:add_packet_field(c.name, body(11, name), ENC_UTF_8) end
    if terms > 0 then tree:add_packet_field(c.terms, body(11 + name, terms), ENC_UTF_8) end
    if body:len() > rest + 4 then tree:add(c.codec, body(rest + 4, 1)) end
    if body:len() > rest then tree:add(c.layout, body(rest)) end
    return name > 0 and body(11, name):string(ENC_UTF_8) or nil
  end },
  WELCOME = { 7, function(body, tree)
    tree:add(c.session, body(0, 4))
    tree:add(c.data_port, body(4, 2))
    tree:add(c.cipher, body(6, 1))
    if body:len() > 7 then tree:add(c.key, body(7)) end
  end },
  REFUSED = { 0, text },
  FAILED = { 0, text },
  PROBE = { 4, function(body, tree)
    if body:len() < 5 then
      tree:add(c.sent, body(0, 4))
      return body(0, 4):uint() .. " sent"
    end
    tree:add(c.pass, body(0, 4))
    tree:add(c.pass_ends, body(4, 1))
    return "pass " .. body(0, 4):uint()
  end },
  BITMAP = { 1, arrivals },
  LATE_BITMAP = { 1, arrivals },
  STOP = { 0, function(body, tree)
    if body:len() == 0 then return end
    tree:add(c.bits, body)
    counted(tree, c.arrived, ones(body))
    return ones(body) .. " arrived"
  end },
  ANNOUNCE = { 0, function(body, tree)
    if body:len() > 0 then tree:add(c.content, body) end
  end },
  ACK = { 16, function(body, tree)
    tree:add(c.first, body(0, 2))
    local echo = tree:add(c.echo, body(2, 2))
    if body(2, 2):uint() == NO_ECHO then echo:append_text(" (none)") end
    tree:add(c.held_us, body(4, 4))
    tree:add(c.probed, body(8, 4))
    tree:add(c.at_once, body(14, 2))
    local found = 0
    if body:len() > 16 then
      tree:add(c.bits, body(16))
      found = ones(body(16))
    end
    counted(tree, c.arrived, found)
    return found .. " arrived"
  end },
  ENERGY = { 1, function(body, tree)
    tree:add(c.energy, body)
    counted(tree, c.must, ones(body, 128))
    return body:len() .. " chunks"
  end },
}

-- A capture may begin within a message, and TLS has none to see: then all that is there is one piece.
local function begins_here(tvb, at)
  return TYPES[tvb(at, 1):uint()] ~= nil and tvb(at + 1, 1):uint() == VERSION and tvb(at + 2, 2):uint() == 0
end

local function message_bytes(tvb, pinfo, at)
  if not begins_here(tvb, at) then return tvb:len() - at end
  return HEADER_BYTES + tvb(at + 8, 4):uint()
end

local function message(tvb, pinfo, tree)
  local subtree = tree:add(control, tvb())
  if not begins_here(tvb, 0) then
    subtree:add_proto_expert_info(wrong)
    pinfo.cols.info:append(" no message begins here (TLS?)")
    return tvb:len()
  end
  local name, transfer = TYPES[tvb(0, 1):uint()], tvb(4, 4):uint()
  subtree:add(c.type, tvb(0, 1))
  subtree:add(c.version, tvb(1, 1))
  subtree:add(c.reserved, tvb(2, 2))
  subtree:add(c.transfer, tvb(4, 4))
  subtree:add(c.length, tvb(8, 4))
  subtree:append_text(", " .. name)
  local said, lacks
  local least, read = 0, nil
  if BODIES[name] then least, read = BODIES[name][1], BODIES[name][2] end
  if tvb:len() - HEADER_BYTES < least then
    lacks = true
  elseif read then
    -- An empty body is a range that Wireshark does not make: it stands for itself.
    local body = tvb:len() > HEADER_BYTES and tvb(HEADER_BYTES) or { len = function() return 0 end }
    said, lacks = read(body, subtree)
  end
  if lacks then subtree:add_proto_expert_info(body_wrong) end
  local of = OF_A_TRANSFER[name] and " transfer " .. transfer or ""
  pinfo.cols.info:append(string.format(" [%s%s%s]", name, of, said and ": " .. said or ""))
  return tvb:len()
end

function control.dissector(tvb, pinfo, tree)
  pinfo.cols.protocol = "BL-CTRL"
  pinfo.cols.info = ""
  dissect_tcp_pdus(tvb, tree, HEADER_BYTES, message_bytes, message)
  return tvb:len()
end

function piece.dissector(tvb, pinfo, tree)
  pinfo.cols.protocol = "BL-PIECE"
  local subtree = tree:add(piece, tvb())
  local finish = tvb:len() - TRAILER_BYTES
  if finish < PIECE_HEADER_BYTES then
    subtree:add_proto_expert_info(piece_short)
    return tvb:len()
  end
  subtree:add(h.session, tvb(0, 4))
  subtree:add(h.number, tvb(4, 8))
  subtree:add(h.asks, tvb(11, 1))
  subtree:add(h.again, tvb(11, 1))
  subtree:add(h.echo, tvb(12, 8))
  subtree:add(h.received, tvb(20, 8))
  subtree:add(h.first, tvb(28, 8))
  if finish > PIECE_HEADER_BYTES then subtree:add(h.bytes, tvb(PIECE_HEADER_BYTES, finish - PIECE_HEADER_BYTES)) end
  subtree:add(h.trailer, tvb(finish))
  local asks = tvb(11, 1):uint() % 2 == 1 and ", asks" or ""
  pinfo.cols.info = string.format("from %s, %d bytes%s", tostring(tvb(28, 8):uint64()), finish - PIECE_HEADER_BYTES, asks)
  local at = PIECE_HEADER_BYTES
  while at + HEADER_BYTES <= finish and begins_here(tvb, at) and at + message_bytes(tvb, pinfo, at) <= finish do
    local length = message_bytes(tvb, pinfo, at)
    message(tvb(at, length):tvb(), pinfo, tree)
    at = at + length
  end
  return tvb:len()
end

DissectorTable.get("udp.port"):add(DATA_PORTS, data)
DissectorTable.get("udp.port"):add(CONTROL_PORTS, piece)
DissectorTable.get("tcp.port"):add(CONTROL_PORTS, control)

// The ns-3 half of beside_ns3.py: senders with links of their own, then a chain of ports that all share.
//
// Reads from standard input, in whole numbers: bytes of a datagram on the wire, bit/s of a sender's link,
// nanoseconds of delay of each link, datagrams that may wait at a port; how many ports and bit/s of each;
// how many senders, and for each how many datagrams and when each is sent, in nanoseconds.
// Prints what each port dropped, the processor time of the simulation in seconds, and for each datagram
// that came out its sender, its number and its time in nanoseconds.

#include <ctime>
#include <iostream>
#include <map>
#include <vector>

#include "ns3/drop-tail-queue.h"
#include "ns3/node.h"
#include "ns3/packet.h"
#include "ns3/point-to-point-channel.h"
#include "ns3/point-to-point-net-device.h"
#include "ns3/simulator.h"

using namespace ns3;
using Device = Ptr<PointToPointNetDevice>;

constexpr uint16_t IPV4 = 0x0800;    // the device sends nothing else
constexpr uint32_t PPP_BYTES = 2;    // it adds these to each packet

struct Arrival { uint32_t sender, number; int64_t time_ns; };

uint32_t size_bytes;
int64_t delay_ns;
std::vector<std::vector<int64_t>> sent_ns;            // by sender
std::vector<std::pair<uint32_t, uint32_t>> whose;     // by the packet's uid
std::map<Ptr<NetDevice>, Device> onward;              // from a device that receives to the one that sends on
std::vector<Arrival> came;

bool Receive(Ptr<NetDevice> device, Ptr<const Packet> packet, uint16_t, const Address&) {
  auto next = onward.find(device);
  if (next != onward.end()) {
    next->second->Send(packet->Copy(), next->second->GetBroadcast(), IPV4);
  } else {
    auto [sender, number] = whose[packet->GetUid()];
    came.push_back({sender, number, Simulator::Now().GetNanoSeconds()});
  }
  return true;
}

// A link from one node to another; both its devices.
std::pair<Device, Device> Join(Ptr<Node> from, Ptr<Node> to, uint64_t rate_bps, uint32_t room) {
  auto channel = CreateObject<PointToPointChannel>();
  channel->SetAttribute("Delay", TimeValue(NanoSeconds(delay_ns)));
  std::vector<Device> ends;
  for (auto& node : {from, to}) {
    auto device = CreateObject<PointToPointNetDevice>();
    device->SetAddress(Mac48Address::Allocate());
    device->SetDataRate(DataRate(rate_bps));
    device->SetQueue(CreateObjectWithAttributes<DropTailQueue<Packet>>(
        "MaxSize", QueueSizeValue(QueueSize(QueueSizeUnit::PACKETS, room))));
    node->AddDevice(device);
    device->Attach(channel);
    device->SetReceiveCallback(MakeCallback(&Receive));
    ends.push_back(device);
  }
  return {ends[0], ends[1]};
}

void Depart(Device device, uint32_t sender, uint32_t number) {
  auto packet = Create<Packet>(size_bytes - PPP_BYTES);
  if (whose.size() <= packet->GetUid()) whose.resize(packet->GetUid() + 1);
  whose[packet->GetUid()] = {sender, number};
  device->Send(packet, device->GetBroadcast(), IPV4);
  const auto& times = sent_ns[sender];
  if (number + 1 < times.size())
    Simulator::Schedule(NanoSeconds(times[number + 1] - times[number]), &Depart, device, sender, number + 1);
}

int main() {
  uint64_t rate_bps;
  uint32_t room, count;
  std::cin >> size_bytes >> rate_bps >> delay_ns >> room >> count;
  std::vector<uint64_t> port_bps(count);
  for (auto& each : port_bps) std::cin >> each;
  std::cin >> count;
  sent_ns.resize(count);
  for (auto& times : sent_ns) {
    std::cin >> count;
    times.resize(count);
    for (auto& each : times) std::cin >> each;
  }

  auto first = CreateObject<Node>(), node = first;
  std::vector<Device> ports;
  Ptr<NetDevice> before;
  for (auto each : port_bps) {
    auto next = CreateObject<Node>();
    auto [out, in] = Join(node, next, each, room);
    if (before) onward[before] = out;
    ports.push_back(out);
    before = in;
    node = next;
  }
  for (uint32_t sender = 0; sender < sent_ns.size(); ++sender) {
    auto [out, in] = Join(CreateObject<Node>(), first, rate_bps, 1u << 30);
    onward[in] = ports[0];
    Simulator::Schedule(NanoSeconds(sent_ns[sender][0]), &Depart, out, sender, 0u);
  }

  auto began = std::clock();
  Simulator::Run();
  double took_s = double(std::clock() - began) / CLOCKS_PER_SEC;
  for (auto& each : ports) std::cout << each->GetQueue()->GetTotalDroppedPackets() << " ";
  std::cout << took_s << "\n";
  for (auto& each : came) std::cout << each.sender << " " << each.number << " " << each.time_ns << "\n";
  Simulator::Destroy();
}

"""A kubelet by gRPC's own library: it registers the plugin, lists its shares and allocates one, and prints what it got.

Messages are read and written by their field numbers in the public protocol; no generated code takes part."""

import sys
import threading
from concurrent import futures

import grpc

DIRECTORY, SHARE = sys.argv[1:]
PLUGIN = "/v1beta1.DevicePlugin/"


def read(message):
    """The fields of a message: numbers, and texts or messages as bytes."""
    fields, at = [], 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            fields.append((key >> 3, number()))
        else:
            size = number()
            fields.append((key >> 3, message[at : at + size]))
            at += size
    return fields


def text(part):
    return part.decode() if isinstance(part, bytes) else part


def write(field, content):
    return bytes([field << 3 | 2, len(content)]) + content


def call(channel, kind, name):
    return getattr(channel, kind)(PLUGIN + name, request_serializer=bytes, response_deserializer=bytes)


def register(request, context):
    fields = dict(read(request))
    # As a kubelet of Kubernetes is called by its plugins' servers.
    options = [("grpc.default_authority", "localhost")]
    channel = grpc.insecure_channel(f"unix:{DIRECTORY}/{fields[2].decode()}", options=options)
    print("register", fields[1].decode(), fields[3].decode())
    print("options", read(call(channel, "unary_unary", "GetDevicePluginOptions")(b"")))
    threading.Thread(target=use, args=[channel]).start()
    return b""


def use(channel):
    devices = next(call(channel, "unary_stream", "ListAndWatch")(b""))
    for _, device in read(devices):
        fields = dict(read(device))
        print("device", fields[1].decode(), fields[2].decode(), "numa", [read(node) for _, node in read(fields.get(3, b""))])
    allocate = call(channel, "unary_unary", "Allocate")
    answer = allocate(write(1, write(1, SHARE.encode())))
    for _, container in read(answer):
        parts = [(field, [text(part) for _, part in read(content)]) for field, content in read(container)]
        for field, part in sorted(parts):
            print(field, part)
    try:
        allocate(write(1, write(1, b"nosuch")))
    except grpc.RpcError as error:
        print(error.code().name, error.details())
    ended.set()


class Kubelet(grpc.GenericRpcHandler):
    def service(self, details):
        assert details.method == "/v1beta1.Registration/Register", details.method
        return grpc.unary_unary_rpc_method_handler(register)


ended = threading.Event()
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers([Kubelet()])
server.add_insecure_port(f"unix:{DIRECTORY}/kubelet.sock")
server.start()
assert ended.wait(100)

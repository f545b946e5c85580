package measure

import (
	"encoding/binary"
	"fmt"
)

// Noop returns a static Linux executable, for a GOARCH, that only exits: running it costs what
// starting any program costs. It's made here so that a host needs no compiler.
func Noop(goarch string) ([]byte, error) {
	var machine uint16
	var code []byte
	switch goarch {
	case "amd64":
		machine = 62 // EM_X86_64
		code = []byte{
			0x31, 0xff, // xor edi, edi
			0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
			0x0f, 0x05, // syscall
		}
	case "arm64":
		machine = 183 // EM_AARCH64
		code = []byte{
			0x00, 0x00, 0x80, 0xd2, // mov x0, #0
			0xa8, 0x0b, 0x80, 0xd2, // mov x8, #93 (exit)
			0x01, 0x00, 0x00, 0xd4, // svc #0
		}
	default:
		return nil, fmt.Errorf("make a program for %s: no machine code for it here", goarch)
	}
	const (
		base    = 0x400000
		headers = 64 + 2*56
	)
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...) // 64 bits, little endian, version 1
	u16 := func(v uint16) { b = le.AppendUint16(b, v) }
	u32 := func(v uint32) { b = le.AppendUint32(b, v) }
	u64 := func(v uint64) { b = le.AppendUint64(b, v) }
	u16(2) // ET_EXEC
	u16(machine)
	u32(1)
	u64(base + headers) // entry
	u64(64)             // program headers
	u64(0)              // no section headers
	u32(0)
	for _, v := range []uint16{64, 56, 2, 64, 0, 0} {
		u16(v)
	}
	u32(1) // PT_LOAD: all of the file
	u32(5) // r-x
	size := uint64(headers + len(code))
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		u64(v)
	}
	u32(0x6474e551) // PT_GNU_STACK: not executable
	u32(6)          // rw-
	for range 5 {
		u64(0)
	}
	u64(16)
	return append(b, code...), nil
}

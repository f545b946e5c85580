package landlock

import (
	"encoding/binary"
	"runtime"
)

// tiny returns a static program of a few instructions that exits with 0, so
// that executing it needs no loader and no library.
func tiny() []byte {
	code, machine := []byte{0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05}, uint16(62) // mov eax,60; xor edi,edi; syscall
	if runtime.GOARCH == "arm64" {
		// mov x8,#93; mov x0,#0; svc #0
		code, machine = []byte{0xa8, 0x0b, 0x80, 0xd2, 0x00, 0x00, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4}, 183
	}
	const base, head = 0x400000, 64 + 56
	le := binary.LittleEndian
	b := append([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, make([]byte, 9)...)
	b = le.AppendUint16(b, 2) // ET_EXEC
	b = le.AppendUint16(b, machine)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+head) // entry
	b = le.AppendUint64(b, 64)        // program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // read, execute
	for _, v := range []uint64{0, base, base, uint64(head + len(code)), uint64(head + len(code)), 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}

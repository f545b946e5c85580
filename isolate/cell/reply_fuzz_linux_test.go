package cell

import (
	"encoding/binary"
	"testing"

	"palyra/isolate/evidence"
)

// FuzzReply: an answer that has an id can be read or is an error, and says the
// same id both times; palyra-cell is trusted to confine and to nothing else.
func FuzzReply(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{opResult})
	f.Add(binary.LittleEndian.AppendUint64([]byte{opResult}, 7))
	f.Add(append([]byte{opReply}, `{"id":7,"error":{"kind":1,"reason":"x","op":"y","text":"z"}}`...))
	f.Add(append([]byte{opReply}, `{"id":7,"id":8}`...))
	f.Add(append([]byte{opReply}, `{"id":7,"result":{},"plan":{},"stats":{}}`...))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := answerID(string(b))
		if err != nil {
			return
		}
		if b[0] == opCell {
			return
		}
		r, err := (&question{known: new(evidence.Evidence)}).parseReply(string(b))
		if err == nil && b[0] == opReply && r.ID != id {
			t.Errorf("the id is %d and %d", id, r.ID)
		}
		if err == nil && b[0] == opResult && r.Result == nil {
			t.Error("a result that is none")
		}
	})
}

package builtin

import (
	"bytes"
	"encoding/base64"
	"unicode/utf8"

	"palyra/internal/toolproto"
)

// content spells bytes for a result.
func content(b []byte) toolproto.Content {
	if bytes.IndexByte(b, 0) < 0 && utf8.Valid(b) {
		return toolproto.Content{Text: string(b)}
	}
	return toolproto.Content{Binary: true, Base64: base64.StdEncoding.EncodeToString(b)}
}

// whole cuts off an incomplete last character, so that a part of a text is a text. It
// leaves other bytes alone.
func whole(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		c := b[len(b)-i]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) && i < len(b) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// artifactRead gives back the part of an artifact that the kernel put behind
// the input.
func artifactRead(in *toolproto.ArtifactReadInput, payload []byte) (any, error) {
	r := &toolproto.ArtifactReadResult{Size: in.Size, Offset: in.Offset}
	if err := r.Digest.UnmarshalText([]byte(in.Digest)); err != nil {
		return nil, err
	}
	if in.Offset+int64(len(payload)) < in.Size {
		payload = whole(payload)
		r.NextOffset = in.Offset + int64(len(payload))
	}
	r.Length = int64(len(payload))
	r.Content = content(payload)
	return r, nil
}

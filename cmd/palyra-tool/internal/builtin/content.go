package builtin

import "palyra/internal/toolproto"

// artifactRead gives back the part of an artifact that the kernel put behind
// the input.
func artifactRead(in *toolproto.ArtifactReadInput, payload []byte) (any, error) {
	r := &toolproto.ArtifactReadResult{Size: in.Size, Offset: in.Offset}
	if err := r.Digest.UnmarshalText([]byte(in.Digest)); err != nil {
		return nil, err
	}
	if in.Offset+int64(len(payload)) < in.Size {
		payload = toolproto.WholeText(payload)
		r.NextOffset = in.Offset + int64(len(payload))
	}
	r.Length = int64(len(payload))
	r.Content = toolproto.ContentOf(payload)
	return r, nil
}

package toolproto

import (
	"strconv"

	"palyra/internal/canon"
)

// ArtifactRead is the name of the tool.
const ArtifactRead = "artifact.read"

// ArtifactReadInput is the input of artifact.read.
type ArtifactReadInput struct {
	Digest string `json:"digest" tool:"required,min=71,max=71" doc:"sha256:… of the artifact"`
	Offset int64  `json:"offset" tool:"min=0,max=1099511627776" doc:"how many bytes to leave out at the beginning"`
	Limit  int64  `json:"limit" tool:"default=65536,min=1,max=524288" doc:"how many bytes to return at most"`
	// Size is set by the kernel: bytes of the whole artifact. The payload behind
	// the input is the part that was asked for.
	Size int64 `json:"size" tool:"hidden,min=0,max=9007199254740992"`
}

// Check checks what the bounds of single members do not.
func (in *ArtifactReadInput) Check() error { return checkDigest(in.Digest) }

// Brief names the artifact and the part to read.
func (in *ArtifactReadInput) Brief() []string {
	return []string{"digest=" + in.Digest, "offset=" + strconv.FormatInt(in.Offset, 10), "limit=" + strconv.FormatInt(in.Limit, 10)}
}

// ArtifactReadResult is the result of artifact.read.
type ArtifactReadResult struct {
	Digest     canon.Digest `json:"digest"`
	Size       int64        `json:"size"`
	Offset     int64        `json:"offset"`
	Length     int64        `json:"length"`
	NextOffset int64        `json:"next_offset"` // 0 at the end
	Content    Content      `json:"content"`
}

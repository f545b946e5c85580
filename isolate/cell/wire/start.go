package wire

import (
	"palyra/internal/fault"
	"palyra/isolate/probe"
	"palyra/isolate/tier"
)

// The protocol between palyrad and its starter is one SOCK_SEQPACKET connection. palyrad sends
// a StartRequest with two descriptors: the socket that palyra-cell is to serve, and one end of
// a lifeline. The starter starts itself anew as a palyra-cell, answers on the lifeline with one
// StartReply, and keeps the lifeline open until that process was reaped. A message or the end
// of file on the lifeline tells it to kill the process; a palyrad that dies closes them all.
//
// A request to probe has the lifeline only. Its answer has a report: the process that makes the
// cells is the one that can tell what the host enforces.

// StartRequest asks a starter for a palyra-cell, or to probe.
type StartRequest struct {
	Version int       `json:"version"`
	Probe   bool      `json:"probe,omitempty"`
	Tier    tier.Tier `json:"tier"`
}

// StartReply answers a StartRequest.
type StartReply struct {
	Error  *fault.Message `json:"error,omitempty"`
	Report *probe.Report  `json:"report,omitempty"` // to a probe
}

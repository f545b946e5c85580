package hub

// ReachQuery chooses a session; none chooses all that the caller may see.
type ReachQuery struct {
	Session string `json:"session,omitempty" in:"query" doc:"the session that the calls belong to"`
}

// Reach says what the newest calls could reach, reached and were denied, by session. It's taken
// from the journal's newest entries.
type Reach struct {
	From     uint64         `json:"from"`     // the first entry that was looked at
	Size     uint64         `json:"size"`     // of the journal
	Calls    int            `json:"calls"`    // that were looked at
	Cut      bool           `json:"cut"`      // sessions or hosts beyond the bounds are left out
	Sessions []SessionReach `json:"sessions"` // never null; that with the newest call first
}

// SessionReach is the part of one session.
type SessionReach struct {
	Session   string        `json:"session"` // "": calls that were made without palyrad
	Principal string        `json:"principal"`
	Newest    string        `json:"newest"`    // time of its newest call
	Calls     int           `json:"calls"`     // of it
	Open      int           `json:"open"`      // that have no result yet
	Networks  []string      `json:"networks"`  // never null; that its calls had, as receipts name them
	May       []string      `json:"may"`       // never null; rules that its calls were granted
	Connected []HostReached `json:"connected"` // never null
	Denied    []HostDenied  `json:"denied"`    // never null
}

// HostReached is a host that calls connected to, or tried to.
type HostReached struct {
	Host        string `json:"host"`
	Port        uint32 `json:"port"`
	Connections int    `json:"connections"`
	Sent        int64  `json:"sent_bytes"`
	Received    int64  `json:"received_bytes"`
	Entry       uint64 `json:"entry"` // in the journal, of the newest
}

// HostDenied is a host that calls asked for and didn't get.
type HostDenied struct {
	Host  string `json:"host"`
	Port  uint32 `json:"port,omitempty"` // 0: the name was only looked up
	Why   string `json:"why"`
	Times int64  `json:"times"`
	Entry uint64 `json:"entry"`          // in the journal, of the newest
	Rule  string `json:"rule,omitempty"` // that would allow it; absent if none could, or the host is a private or special address
}

package hub

// UsageQuery says whose turns of models are counted.
type UsageQuery struct {
	Principal string `json:"principal,omitempty" in:"query" doc:"whose turns; default: the caller's"`
	Session   string `json:"session,omitempty" in:"query" doc:"only those of this session, in place of a principal's"`
	// By is "" or UsageByPrincipal.
	By   string `json:"by,omitempty" in:"query" doc:"principal: a sum for each principal and model, in place of days; for who may manage members" enum:"principal"`
	Days int    `json:"days,omitempty" in:"query" doc:"of how many days, today's included: 1 to 366; default: 7, and all of a session's"`
}

// UsageByPrincipal asks for the sums of all principals.
const UsageByPrincipal = "principal"

// The bounds of a UsageQuery's days.
const (
	MaxUsageDays     = 366
	DefaultUsageDays = 7
)

// Usage is what turns of models took, those under way included.
type Usage struct {
	Principal string        `json:"principal,omitempty"` // "": all
	Session   string        `json:"session,omitempty"`
	Items     []DayUsage    `json:"items"` // newest day first, by model; of all, by principal
	Total     UsageCount    `json:"total"` // of Items
	Budgets   []UsageBudget `json:"budgets"`
}

// DayUsage is what turns of a model took in a day, or a principal's in all days of the query.
type DayUsage struct {
	Day       string     `json:"day,omitempty"`       // UTC: 2006-01-02
	Principal string     `json:"principal,omitempty"` // in place of a day
	Model     string     `json:"model"`               // as the configuration calls it, or did
	Took      UsageCount `json:"took"`
}

// UsageCount is a sum.
type UsageCount struct {
	Turns int64 `json:"turns"`
	// Sized is how many of the turns are under way, or ended without their provider's count: their
	// tokens are a quarter of the bytes of question and answer.
	Sized int64 `json:"sized,omitempty"`
	AgentUsage
}

// UsageBudget is a bound on turns: with as much used, no further one is made.
type UsageBudget struct {
	Of   string `json:"of"`   // UsageSession, or UsageDay: the principal's today
	Unit string `json:"unit"` // UsageTokens, or UsageCost: in millionths of the unit of the models' prices
	Most int64  `json:"most"`
	Used int64  `json:"used"`
	Left int64  `json:"left"`
}

// The scopes of a UsageBudget, and its units.
const (
	UsageSession = "session"
	UsageDay     = "day"
	UsageTokens  = "tokens"
	UsageCost    = "cost"
)

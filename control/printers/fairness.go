package printers

import (
	"cmp"
	"strconv"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// fairnessKinds holds the columns of API Priority and Fairness.
var fairnessKinds = map[schema.GroupKind]Columns{
	{Group: "flowcontrol.apiserver.k8s.io", Kind: "FlowSchema"}: flowSchemas(),
	{Group: "flowcontrol.apiserver.k8s.io", Kind: "PriorityLevelConfiguration"}: columnsOf(priorityLevelRow,
		nameColumn,
		stringColumn("Type", "Whether the level limits requests."),
		stringColumn("NominalConcurrencyShares", "Share of the concurrency of the server."),
		stringColumn("Queues", "Number of queues."),
		stringColumn("HandSize", "Number of queues of a flow."),
		stringColumn("QueueLengthLimit", "Number of requests that a queue can hold."),
		ageColumn,
	),
}

// flowSchemas returns the columns of FlowSchemas. Lists are in the order in which requests are matched.
func flowSchemas() Columns {
	out := columnsOf(
		func(f *flowcontrolv1.FlowSchema, now time.Time) []any {
			method, missing := none, "?"
			if f.Spec.DistinguisherMethod != nil {
				method = string(f.Spec.DistinguisherMethod.Type)
			}
			for _, c := range f.Status.Conditions {
				if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
					missing = string(c.Status)
				}
			}
			return []any{f.Name, f.Spec.PriorityLevelConfiguration.Name, int64(f.Spec.MatchingPrecedence), method,
				age(f.CreationTimestamp, now), missing}
		},
		nameColumn,
		stringColumn("PriorityLevel", "Priority level of the requests."),
		integerColumn("MatchingPrecedence", "Schemas with a lower number are matched first."),
		stringColumn("DistinguisherMethod", "How the requests are divided into flows."),
		ageColumn,
		stringColumn("MissingPL", "Whether the priority level does not exist."),
	)
	out.order = func(a, b runtime.Object) int {
		left, leftOK := a.(*flowcontrolv1.FlowSchema)
		right, rightOK := b.(*flowcontrolv1.FlowSchema)
		if !leftOK || !rightOK {
			return 0
		}
		return cmp.Or(cmp.Compare(left.Spec.MatchingPrecedence, right.Spec.MatchingPrecedence),
			cmp.Compare(left.Name, right.Name))
	}
	return out
}

func priorityLevelRow(p *flowcontrolv1.PriorityLevelConfiguration, now time.Time) []any {
	shares, queues, handSize, limit := none, none, none, none
	if l := p.Spec.Limited; l != nil {
		if l.NominalConcurrencyShares != nil {
			shares = number(*l.NominalConcurrencyShares)
		}
		if q := l.LimitResponse.Queuing; q != nil {
			queues, handSize, limit = number(q.Queues), number(q.HandSize), number(q.QueueLengthLimit)
		}
	}
	return []any{p.Name, string(p.Spec.Type), shares, queues, handSize, limit, age(p.CreationTimestamp, now)}
}

func number(n int32) string { return strconv.Itoa(int(n)) }

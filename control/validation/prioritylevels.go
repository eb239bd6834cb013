package validation

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"

	"berth/internal/rules"
)

// maxQueues is the largest number of queues of a priority level.
const maxQueues = 10_000_000

func defaultPriorityLevel(p *flowcontrolv1.PriorityLevelConfiguration) {
	if e := p.Spec.Exempt; e != nil {
		rules.SetIfNil(&e.NominalConcurrencyShares, 0)
		rules.SetIfNil(&e.LendablePercent, 0)
	}
	l := p.Spec.Limited
	if l == nil {
		return
	}
	rules.SetIfNil(&l.NominalConcurrencyShares, 30)
	rules.SetIfNil(&l.LendablePercent, 0)
	if q := l.LimitResponse.Queuing; q != nil {
		rules.SetIfZero(&q.HandSize, 8)
		rules.SetIfZero(&q.Queues, 64)
		rules.SetIfZero(&q.QueueLengthLimit, 50)
	}
}

func (k *validator) priorityLevel(p *flowcontrolv1.PriorityLevelConfiguration) {
	exempt := p.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	if exempt != (p.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt) {
		k.Invalid(spec.Child("type"), p.Spec.Type, "type must be 'Exempt' if and only if name is 'exempt'")
	}
	if p.Spec.Limited != nil && p.Spec.Type != flowcontrolv1.PriorityLevelEnablementLimited {
		k.Forbidden(spec.Child("limited"), "must be nil if the type is not Limited")
	}
	if p.Spec.Exempt != nil && p.Spec.Type != flowcontrolv1.PriorityLevelEnablementExempt {
		k.Forbidden(spec.Child("exempt"), "must be nil if the type is not Exempt")
	}
	switch p.Spec.Type {
	case flowcontrolv1.PriorityLevelEnablementExempt:
		if e := p.Spec.Exempt; e != nil {
			k.shares(spec.Child("exempt"), e.NominalConcurrencyShares, e.LendablePercent)
		}
	case flowcontrolv1.PriorityLevelEnablementLimited:
		if p.Spec.Limited == nil {
			k.Required(spec.Child("limited"), "must not be empty when type is Limited")
		} else {
			k.limited(spec.Child("limited"), p.Spec.Limited)
		}
	default:
		rules.OneOf(k, spec.Child("type"), p.Spec.Type,
			flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited)
	}
	k.fixedPriorityLevel(p)
	k.priorityLevelStatus(p)
}

// fixedPriorityLevel validates that the spec of a mandatory level is unchanged, except the shares of the
// exempt level.
func (k *validator) fixedPriorityLevel(p *flowcontrolv1.PriorityLevelConfiguration) {
	for _, fixed := range bootstrap.MandatoryPriorityLevelConfigurations {
		if fixed.Name != p.Name {
			continue
		}
		have, except := p.Spec, ""
		if have.Exempt != nil {
			have.Exempt, except = fixed.Spec.Exempt, " except the 'spec.exempt' field"
		}
		if !equality.Semantic.DeepEqual(have, fixed.Spec) {
			k.Invalid(spec, p.Spec, "spec of '%s'%s must equal the fixed value", p.Name, except)
		}
	}
}

func (k *validator) shares(at *field.Path, shares, lendablePercent *int32) {
	if shares != nil && *shares < 0 {
		k.Invalid(at.Child("nominalConcurrencyShares"), *shares, "must be a non-negative integer")
	}
	if lendablePercent != nil && (*lendablePercent < 0 || *lendablePercent > 100) {
		k.Invalid(at.Child("lendablePercent"), *lendablePercent, "must be between 0 and 100, inclusive")
	}
}

func (k *validator) limited(at *field.Path, l *flowcontrolv1.LimitedPriorityLevelConfiguration) {
	k.shares(at, l.NominalConcurrencyShares, l.LendablePercent)
	if l.BorrowingLimitPercent != nil && *l.BorrowingLimitPercent < 0 {
		k.Invalid(at.Child("borrowingLimitPercent"), *l.BorrowingLimitPercent,
			"if specified, must be a non-negative integer")
	}
	response, queuing := at.Child("limitResponse"), at.Child("limitResponse", "queuing")
	switch l.LimitResponse.Type {
	case flowcontrolv1.LimitResponseTypeReject:
		if l.LimitResponse.Queuing != nil {
			k.Forbidden(queuing, "must be nil if limited.limitResponse.type is not Limited")
		}
	case flowcontrolv1.LimitResponseTypeQueue:
		if l.LimitResponse.Queuing == nil {
			k.Required(queuing, "must not be empty if limited.limitResponse.type is Limited")
		} else {
			k.queuing(queuing, l.LimitResponse.Queuing)
		}
	default:
		rules.OneOf(k, response.Child("type"), l.LimitResponse.Type,
			flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject)
	}
}

// queuing validates the queues of a level. A hand must be dealt from the 64 bits of a hash.
func (k *validator) queuing(at *field.Path, q *flowcontrolv1.QueuingConfiguration) {
	if q.QueueLengthLimit <= 0 {
		k.Invalid(at.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive")
	}
	if q.Queues <= 0 {
		k.Invalid(at.Child("queues"), q.Queues, "must be positive")
	} else if q.Queues > maxQueues {
		k.Invalid(at.Child("queues"), q.Queues, "must not be greater than %d", maxQueues)
	}
	hand := at.Child("handSize")
	if q.HandSize <= 0 {
		k.Invalid(hand, q.HandSize, "must be positive")
		return
	}
	if q.HandSize > q.Queues {
		k.Invalid(hand, q.HandSize, "should not be greater than queues (%d)", q.Queues)
		return
	}
	bits := shufflesharding.RequiredEntropyBits(int(q.Queues), int(q.HandSize))
	if bits > shufflesharding.MaxHashBits {
		k.Invalid(hand, q.HandSize,
			"required entropy bits of deckSize %d and handSize %d should not be greater than %d",
			q.Queues, q.HandSize, shufflesharding.MaxHashBits)
	}
}

func (k *validator) priorityLevelStatus(p *flowcontrolv1.PriorityLevelConfiguration) {
	types := make([]string, 0, len(p.Status.Conditions))
	for _, c := range p.Status.Conditions {
		types = append(types, string(c.Type))
	}
	k.conditionTypes(types)
}

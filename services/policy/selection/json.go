package selection

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
)

// storedSelector is a Selector as JSON. Selectors are in the syntax of kubectl.
type storedSelector struct {
	Key        GroupKey `json:"key"`
	Namespace  string   `json:"namespace,omitempty"`
	Namespaces *string  `json:"namespaces,omitempty"`
	Pods       string   `json:"pods"`
}

// MarshalJSON implements json.Marshaler.
func (s Selector) MarshalJSON() ([]byte, error) {
	out := storedSelector{Key: s.Key, Namespace: s.Namespace, Pods: s.Pods.String()}
	if s.Namespaces != nil {
		out.Namespaces = new(s.Namespaces.String())
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Selector) UnmarshalJSON(text []byte) error {
	var from storedSelector
	if err := json.Unmarshal(text, &from); err != nil {
		return err
	}
	out := Selector{Key: from.Key, Namespace: from.Namespace}
	var err error
	if out.Pods, err = labels.Parse(from.Pods); err != nil {
		return fmt.Errorf("selector of pods: %w", err)
	}
	if from.Namespaces != nil {
		if out.Namespaces, err = labels.Parse(*from.Namespaces); err != nil {
			return fmt.Errorf("selector of namespaces: %w", err)
		}
	}
	*s = out
	return nil
}

// policyFields are the fields of a Policy that are plain data.
type policyFields Policy

// storedPolicy is a Policy as JSON.
type storedPolicy struct {
	*policyFields

	Subject string
}

// MarshalJSON implements json.Marshaler.
func (p *Policy) MarshalJSON() ([]byte, error) {
	return json.Marshal(storedPolicy{(*policyFields)(p), p.Subject.String()})
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Policy) UnmarshalJSON(text []byte) error {
	from := storedPolicy{policyFields: &policyFields{}}
	if err := json.Unmarshal(text, &from); err != nil {
		return err
	}
	subject, err := labels.Parse(from.Subject)
	if err != nil {
		return fmt.Errorf("selector of the subject: %w", err)
	}
	*p = Policy(*from.policyFields)
	p.Subject = subject
	return nil
}

// MarshalJSON implements json.Marshaler.
func (l Labels) MarshalJSON() ([]byte, error) {
	out := make(map[string]string, len(l))
	for _, x := range l {
		out[x.key.Value()] = x.value.Value()
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *Labels) UnmarshalJSON(text []byte) error {
	var from map[string]string
	if err := json.Unmarshal(text, &from); err != nil {
		return err
	}
	*l = MakeLabels(from)
	return nil
}

package control

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"berth/control/fairness"
)

// checkRequestLimits checks the limits of concurrent requests. The error names the flag.
func (c *Config) checkRequestLimits() error {
	if c.MaxRequestsInFlight < 0 {
		return fmt.Errorf("max-requests-inflight: %d: must not be negative", c.MaxRequestsInFlight)
	}
	if c.MaxMutatingRequestsInFlight < 0 {
		return fmt.Errorf("max-mutating-requests-inflight: %d: must not be negative", c.MaxMutatingRequestsInFlight)
	}
	if c.MaxRequestsInFlight+c.MaxMutatingRequestsInFlight == 0 {
		return fmt.Errorf("max-requests-inflight and max-mutating-requests-inflight: the sum must be greater than 0")
	}
	return nil
}

// requestLimits keeps what API Priority and Fairness needs.
type requestLimits struct {
	ensurer *fairness.Ensurer
	counter *fairness.Counter
}

// run returns when ctx is done. It does nothing before the server is ready: until then, the mandatory
// objects apply, also if they are not stored.
func (l *requestLimits) run(ctx context.Context, ready <-chan struct{}) {
	select {
	case <-ctx.Done():
		return
	case <-ready:
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.ensurer.Run(ctx) })
	wg.Go(func() { l.counter.Run(ctx) })
	wg.Wait()
}

// addRequestLimits adds API Priority and Fairness to the API server. It adds informers, which must not have
// been started.
func (s *Server) addRequestLimits(config *genericapiserver.Config) (err error) {
	client := s.Client.FlowcontrolV1()
	config.FlowControl = flowcontrol.New(s.Informers, client, s.MaxRequestsInFlight+s.MaxMutatingRequestsInFlight)
	s.limits.counter = &fairness.Counter{
		Tracker: config.StorageObjectCountTracker, Resources: s.countedResources, Log: s.Log,
	}
	s.limits.ensurer, err = fairness.NewEnsurer(s.Informers, client, s.Log)
	return err
}

// countedResources returns all resources that have objects in the store.
func (s *Server) countedResources() []fairness.Resource {
	stored := func(prefix string) fairness.StatsFunc {
		return fairness.StoredStats(s.EtcdClient, path.Join(keyPrefix, prefix)+"/")
	}
	definitions := schema.GroupResource{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"}
	services := schema.GroupResource{Group: apiregistrationv1.GroupName, Resource: "apiservices"}
	out := []fairness.Resource{{GroupResource: definitions, Stats: stored(groupedPrefix(definitions))},
		{GroupResource: services, Stats: stored(groupedPrefix(services))}}
	for _, kind := range s.Kinds {
		stats := stored(cmp.Or(kind.Prefix, kind.Resource))
		if kind.Cached {
			stats = s.Stores[kind.GroupResource()].Storage.Stats
		}
		out = append(out, fairness.Resource{GroupResource: kind.GroupResource(), Stats: stats})
	}
	return append(out, s.customObjects.counted()...)
}

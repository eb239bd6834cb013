package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
)

func (b *berth) listEvents(_ context.Context, req nodeapi.EventsRequest) (*corev1.EventList, error) {
	list := &corev1.EventList{}
	for _, e := range b.events.All() {
		if req.Matches(&e) {
			list.Items = append(list.Items, e)
		}
	}
	return list, nil
}

// eventBuffer is the number of events buffered for a slow watcher.
const eventBuffer = 256

func (b *berth) watchEvents(
	ctx context.Context,
	req nodeapi.EventsRequest,
	send func(nodeapi.EventNotification) error,
) error {
	existing, sub := b.events.Subscribe(eventBuffer)
	defer sub.Close()
	for _, e := range existing {
		if req.Matches(&e) {
			if err := send(nodeapi.EventNotification{Event: &e}); err != nil {
				return err
			}
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-sub.C:
			if missed := sub.Dropped(); missed > 0 {
				if err := send(nodeapi.EventNotification{Missed: missed}); err != nil {
					return err
				}
			}
			if !req.Matches(&e) {
				continue
			}
			if err := send(nodeapi.EventNotification{Event: &e}); err != nil {
				return err
			}
		}
	}
}

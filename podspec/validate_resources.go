package podspec

import (
	"maps"
	"math/big"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// containerResources validates the resources of one container.
func (k *validator) containerResources(at *field.Path, c *corev1.Container) {
	r := at.Child("resources")
	k.quantities(r, &c.Resources, k.containerResourceName)
	claims := map[corev1.ResourceClaim]bool{}
	for i, claim := range c.Resources.Claims {
		path := r.Child("claims").Index(i)
		known := slices.ContainsFunc(
			k.spec.ResourceClaims,
			func(p corev1.PodResourceClaim) bool { return p.Name == claim.Name },
		)
		switch {
		case claim.Name == "":
			k.required(path.Child("name"), "")
		case claims[claim]:
			k.duplicate(path, claim.Name)
		case !known:
			k.notFound(path.Child("name"), claim.Name)
		}
		claims[claim] = true
	}
	seen := map[corev1.ResourceName]bool{}
	for i, p := range c.ResizePolicy {
		path := at.Child("resizePolicy").Index(i)
		oneOf(k, path.Child("resourceName"), p.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		oneOf(k, path.Child("restartPolicy"), p.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		if seen[p.ResourceName] {
			k.duplicate(path, p.ResourceName)
		}
		seen[p.ResourceName] = true
		if k.spec.RestartPolicy == corev1.RestartPolicyNever && p.RestartPolicy == corev1.RestartContainer {
			k.invalid(
				path.Child("restartPolicy"),
				p.RestartPolicy,
				"must be `NotRequired` when `restartPolicy` is Never",
			)
		}
	}
}

// containerResourceName validates the name of a resource of a container.
func (k *validator) containerResourceName(at *field.Path, name corev1.ResourceName) {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return
	}
	if isHugePages(name) {
		size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
		if err != nil || size.Sign() <= 0 {
			k.invalid(at, name, "the size of the pages must be a positive quantity")
		}
		return
	}
	complaints := validation.IsQualifiedName(string(name))
	k.each(at, name, complaints)
	if len(complaints) == 0 && !IsExtended(name) {
		k.invalid(at, name, "must be a standard resource for containers or a fully qualified extended one")
	}
}

func (k *validator) podResourceName(at *field.Path, name corev1.ResourceName) {
	if !podLevel(name) {
		k.add(
			field.NotSupported(
				at,
				name,
				[]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, "hugepages-<size>"},
			),
		)
		return
	}
	k.containerResourceName(at, name)
}

// quantities validates limits and requests, individually and against each other.
func (k *validator) quantities(
	at *field.Path,
	r *corev1.ResourceRequirements,
	validateName func(*field.Path, corev1.ResourceName),
) {
	limits, requests := at.Child("limits"), at.Child("requests")
	huge, computing := false, false
	validate := func(at *field.Path, list corev1.ResourceList) {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			path, q := at.Key(string(name)), list[name]
			validateName(path, name)
			k.quantity(path, name, q)
			huge = huge || isHugePages(name)
			computing = computing || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		}
	}
	validate(limits, r.Limits)
	validate(requests, r.Requests)
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		path, request := requests.Key(string(name)), r.Requests[name]
		limit, limited := r.Limits[name]
		exact := isHugePages(name) || IsExtended(name) // cannot be overcommitted
		switch {
		case !limited && exact:
			k.required(limits.Key(string(name)), "Limit must be set for non overcommit resources")
		case limited && exact && request.Cmp(limit) != 0:
			k.invalid(path, request.String(), "must be equal to %s limit of %s", name, limit.String())
		case limited && request.Cmp(limit) > 0:
			k.invalid(path, request.String(), "must be less than or equal to %s limit of %s", name, limit.String())
		}
	}
	if huge && !computing {
		k.forbidden(at, "HugePages require cpu or memory")
	}
}

// quantity validates a single quantity.
func (k *validator) quantity(at *field.Path, name corev1.ResourceName, q resource.Quantity) {
	if q.Sign() < 0 {
		k.invalid(at, q.String(), "must be greater than or equal to 0")
		return
	}
	if IsExtended(name) && !wholeMultiple(q, *resource.NewQuantity(1, resource.DecimalSI)) {
		k.invalid(at, q.String(), "must be an integer")
	}
	pageSize := strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix)
	if size, err := resource.ParseQuantity(pageSize); isHugePages(name) &&
		err == nil &&
		size.Sign() > 0 &&
		!wholeMultiple(q, size) {
		k.invalid(at, q.String(), "must be a multiple of the page size %s", size.String())
	}
}

// wholeMultiple reports whether q, which is not negative, is a multiple of unit. It computes in
// thousandths, the smallest fraction that the API stores.
func wholeMultiple(q, unit resource.Quantity) bool {
	return new(big.Int).Rem(thousandths(q), thousandths(unit)).Sign() == 0
}

func thousandths(q resource.Quantity) *big.Int {
	d := q.AsDec()
	out, ten := new(big.Int).Set(d.UnscaledBig()), big.NewInt(10)
	shift := 3 - int64(d.Scale())
	power := new(big.Int).Exp(ten, big.NewInt(max(shift, -shift)), nil)
	if shift >= 0 {
		return out.Mul(out, power)
	}
	return out.Quo(out, power)
}

// podResources validates pod-level resources and the overhead.
func (k *validator) podResources(at *field.Path) {
	k.overhead(at.Child("overhead"), k.spec.Overhead)
	r := k.spec.Resources
	if r == nil {
		return
	}
	at = at.Child("resources")
	k.quantities(at, r, k.podResourceName)
	if len(r.Claims) > 0 {
		k.forbidden(at.Child("claims"), "claims may not be set for pod-level resources")
	}
	sum := containerRequests(k.spec)
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		if all, q := sum[name], r.Requests[name]; all.Cmp(q) > 0 {
			k.invalid(at.Child("requests").Key(string(name)), q.String(),
				"must be greater than or equal to aggregate container requests of %s", all.String())
		}
	}
	for c, where := range containersOf(k.spec) {
		for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
			own := c.Resources.Limits[name]
			if all, limited := r.Limits[name]; limited && own.Cmp(all) > 0 {
				k.invalid(where.path.Child("resources", "limits").Key(string(name)), own.String(),
					"must be less than or equal to pod limits of %s", all.String())
			}
		}
	}
}

// ValidateOverhead returns every error of the overhead of a pod or a RuntimeClass at a path.
func ValidateOverhead(overhead corev1.ResourceList, at *field.Path) field.ErrorList {
	k := &validator{}
	k.overhead(at, overhead)
	return k.errs
}

// overhead validates an overhead. Errors are about its "limits", as in Kubernetes.
func (k *validator) overhead(at *field.Path, overhead corev1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(overhead)) {
		path := at.Child("limits").Key(string(name))
		k.containerResourceName(path, name)
		k.quantity(path, name, overhead[name])
	}
}

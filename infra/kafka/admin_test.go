package kafka_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/internal/must"
)

// fakeBroker refuses requests like the broker of a provider that restricts topic settings, or of an
// administrator who restricts a login. It supports only an Admin.
type fakeBroker struct {
	refuses         *kerr.Error // answer to the creation of a topic with a timestamp type
	denies          *kerr.Error // answer to the creation of any topic, even an existing one
	describe, alter *kerr.Error // answers to DescribeConfigs and IncrementalAlterConfigs
	fenced          int         // number of creations that fail because all brokers are fenced
	away            int         // number of further brokers, which are down

	mu       sync.Mutex
	addr     *net.TCPAddr
	topics   map[string]string // name to timestamp type
	copies   map[string]string // name to replication factor and min.insync.replicas
	requests map[string]int    // request name to count
	log      bytes.Buffer
}

func (h *fakeBroker) start(t *testing.T, topics ...string) kafka.Config {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	h.addr, h.topics, h.copies, h.requests = listener.Addr().(*net.TCPAddr), map[string]string{}, map[string]string{}, map[string]int{}
	for _, name := range topics {
		h.topics[name] = "CreateTime"
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				for h.answer(conn) == nil {
				}
			})
		}
	})
	t.Cleanup(func() { listener.Close(); all.Wait() })
	return kafka.Config{Brokers: []string{h.addr.String()}, Logger: slog.New(slog.NewTextHandler(h, nil))}
}

func (h *fakeBroker) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.Write(p)
}

// answer reads a request and writes the response.
func (h *fakeBroker) answer(conn net.Conn) error {
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(conn, body); err != nil {
		return err
	}
	in := kbin.Reader{Src: body}
	req := kmsg.RequestForKey(in.Int16())
	req.SetVersion(in.Int16())
	correlation := in.Int32()
	in.NullableString()
	if req.IsFlexible() {
		kmsg.SkipTags(&in)
	}
	if err := req.ReadFrom(in.Src); err != nil {
		return err
	}
	resp := h.respond(req)
	out := kbin.AppendInt32(make([]byte, 4), correlation)
	if resp.IsFlexible() && resp.Key() != int16(kmsg.ApiVersions) {
		out = append(out, 0)
	}
	out = resp.AppendTo(out)
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	_, err := conn.Write(out)
	return err
}

func code(e *kerr.Error) int16 {
	if e == nil {
		return 0
	}
	return e.Code
}

func (h *fakeBroker) respond(req kmsg.Request) kmsg.Response {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests[kmsg.NameForKey(req.Key())]++
	resp := req.ResponseKind()
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		for key, most := range map[int16]int16{3: 9, 18: 3, 19: 5, 32: 4, 44: 1, 60: 2} {
			if key == 60 && h.away == 0 {
				continue
			}
			k := kmsg.ApiVersionsResponseApiKey{ApiKey: key, MaxVersion: most}
			resp.(*kmsg.ApiVersionsResponse).ApiKeys = append(resp.(*kmsg.ApiVersionsResponse).ApiKeys, k)
		}
	case *kmsg.DescribeClusterRequest:
		for n := range h.away + 1 {
			if req.IncludeFencedBrokers || n == 0 {
				b := kmsg.NewDescribeClusterResponseBroker()
				b.NodeID, b.IsFenced = int32(n+1), n > 0
				resp.(*kmsg.DescribeClusterResponse).Brokers = append(resp.(*kmsg.DescribeClusterResponse).Brokers, b)
			}
		}
	case *kmsg.MetadataRequest:
		h.metadata(req, resp.(*kmsg.MetadataResponse))
	case *kmsg.CreateTopicsRequest:
		for _, t := range req.Topics {
			a := kmsg.NewCreateTopicsResponseTopic()
			a.Topic, a.ErrorCode = t.Topic, h.create(t)
			resp.(*kmsg.CreateTopicsResponse).Topics = append(resp.(*kmsg.CreateTopicsResponse).Topics, a)
		}
	case *kmsg.DescribeConfigsRequest:
		for _, r := range req.Resources {
			a, by := kmsg.NewDescribeConfigsResponseResource(), h.topics[r.ResourceName]
			a.ResourceType, a.ResourceName, a.ErrorCode = r.ResourceType, r.ResourceName, code(h.describe)
			if h.describe == nil {
				a.Configs = []kmsg.DescribeConfigsResponseResourceConfig{{Name: "message.timestamp.type", Value: &by}}
			}
			resp.(*kmsg.DescribeConfigsResponse).Resources = append(resp.(*kmsg.DescribeConfigsResponse).Resources, a)
		}
	case *kmsg.IncrementalAlterConfigsRequest:
		for _, r := range req.Resources {
			a := kmsg.NewIncrementalAlterConfigsResponseResource()
			a.ResourceType, a.ResourceName, a.ErrorCode = r.ResourceType, r.ResourceName, code(h.alter)
			if h.alter == nil {
				h.topics[r.ResourceName] = *r.Configs[0].Value
			}
			resp.(*kmsg.IncrementalAlterConfigsResponse).Resources = append(resp.(*kmsg.IncrementalAlterConfigsResponse).Resources, a)
		}
	}
	return resp
}

func (h *fakeBroker) create(t kmsg.CreateTopicsRequestTopic) int16 {
	if h.denies != nil {
		return h.denies.Code
	}
	if h.fenced > 0 {
		h.fenced--
		return kerr.InvalidReplicationFactor.Code
	}
	if _, there := h.topics[t.Topic]; there {
		return kerr.TopicAlreadyExists.Code
	}
	by := "CreateTime"
	for _, c := range t.Configs {
		if c.Name == "message.timestamp.type" {
			if h.refuses != nil {
				return h.refuses.Code
			}
			by = *c.Value
		}
		if c.Name == "min.insync.replicas" {
			h.copies[t.Topic] = fmt.Sprint(t.ReplicationFactor, " ", *c.Value)
		}
	}
	h.topics[t.Topic] = by
	return 0
}

func (h *fakeBroker) metadata(req *kmsg.MetadataRequest, resp *kmsg.MetadataResponse) {
	broker := kmsg.NewMetadataResponseBroker()
	broker.NodeID, broker.Host, broker.Port = 1, h.addr.IP.String(), int32(h.addr.Port)
	resp.Brokers, resp.ControllerID = append(resp.Brokers, broker), 1
	for _, requested := range req.Topics {
		topic := kmsg.NewMetadataResponseTopic()
		if topic.Topic = requested.Topic; h.topics[*requested.Topic] == "" {
			topic.ErrorCode = kerr.UnknownTopicOrPartition.Code
		}
		for p := range int32(32) {
			if topic.ErrorCode != 0 {
				break
			}
			part := kmsg.NewMetadataResponseTopicPartition()
			part.Partition, part.Leader, part.Replicas, part.ISR = p, 1, []int32{1}, []int32{1}
			topic.Partitions = append(topic.Partitions, part)
		}
		resp.Topics = append(resp.Topics, topic)
	}
}

// ensures runs Ensure repeatedly, as the service does every few seconds. It returns the number of
// requests by name, and of warnings.
func (h *fakeBroker) ensures(t *testing.T, cfg kafka.Config, times int) (requests map[string]int, warned int) {
	t.Helper()
	admin := newAdmin(t, cfg)
	for range times {
		must.OK(t, admin.Ensure(t.Context()))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.requests, strings.Count(h.log.String(), "level=WARN")
}

// A login that may not read or change topic settings is warned once.
func TestMissingRightsOnSettingsAreLoggedOnce(t *testing.T) {
	for name, h := range map[string]*fakeBroker{
		"describe":       {describe: kerr.TopicAuthorizationFailed},
		"alter":          {alter: kerr.TopicAuthorizationFailed},
		"alter, refused": {alter: kerr.PolicyViolation},
	} {
		t.Run(name, func(t *testing.T) {
			requests, warned := h.ensures(t, h.start(t, "usage.raw"), 4)
			if warned != 1 || requests["DescribeConfigs"] != 1 || requests["IncrementalAlterConfigs"] > 1 {
				t.Errorf("warned %d times: %s\n%v", warned, h.log.String(), requests)
			}
		})
	}
}

// A timestamp type that an administrator sets later is not changed.
func TestTimestampTypeOfAnAdministratorIsKept(t *testing.T) {
	h := &fakeBroker{}
	cfg := h.start(t, "usage.raw")
	admin := newAdmin(t, cfg)
	for _, want := range []string{"LogAppendTime", "CreateTime", "CreateTime"} {
		must.OK(t, admin.Ensure(t.Context()))
		h.mu.Lock()
		if got := h.topics["usage.raw"]; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		h.topics["usage.raw"] = "CreateTime"
		h.mu.Unlock()
	}
}

// If the broker refuses the timestamp type, topics are created without it.
func TestTopicsAreCreatedWithoutARefusedTimestampType(t *testing.T) {
	for _, refuses := range []*kerr.Error{kerr.InvalidConfig, kerr.PolicyViolation} {
		h := &fakeBroker{refuses: refuses, alter: refuses}
		requests, warned := h.ensures(t, h.start(t, "usage.raw"), 4)
		if len(h.topics) < 5 || warned != 1 || requests["CreateTopics"] != 5 {
			t.Errorf("%v: %d topics, warned %d times: %s\n%v", refuses, len(h.topics), warned, h.log.String(), requests)
		}
	}
}

// A login without permission to create topics uses existing topics. A missing topic is reported at once.
func TestExistingTopicsAreUsed(t *testing.T) {
	var names []string
	for _, topic := range events.Topics() {
		names = append(names, topic.Name)
	}
	for _, denies := range []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.PolicyViolation} {
		h := &fakeBroker{denies: denies, alter: kerr.TopicAuthorizationFailed}
		if _, warned := h.ensures(t, h.start(t, names...), 3); warned != 1 {
			t.Errorf("%v: warned %d times: %s", denies, warned, h.log.String())
		}
		h = &fakeBroker{denies: denies}
		err := newAdmin(t, h.start(t, names[1:]...)).Ensure(t.Context())
		if !strings.Contains(fmt.Sprint(err), "create the Kafka topic "+names[0]) || !errors.Is(err, denies) ||
			!errors.Is(err, kafka.ErrTopicsUnfit) {
			t.Errorf("%v, one topic missing: %v", denies, err)
		}
	}
	h := &fakeBroker{denies: kerr.RequestTimedOut} // the next try may create it
	err := newAdmin(t, h.start(t, names[1:]...)).Ensure(t.Context())
	if !errors.Is(err, kerr.RequestTimedOut) || errors.Is(err, kafka.ErrTopicsUnfit) {
		t.Errorf("a topic not created in time: %v", err)
	}
}

// Brokers with late heartbeats are fenced for a moment. Ensure waits for them.
func TestP11_BrokersThatAreFencedForAMomentAreWaitedFor(t *testing.T) {
	h := &fakeBroker{fenced: 12}
	if err := newAdmin(t, h.start(t)).Ensure(t.Context()); err != nil || len(h.topics) < 5 {
		t.Errorf("%d topics, %v", len(h.topics), err)
	}
}

// The replication factor of a topic is fixed at its creation, so brokers that are down count. The
// configuration can override it.
func TestP11_TopicsAreCreatedForBrokersThatAreDown(t *testing.T) {
	for _, c := range []struct {
		away  int
		asked int16
		want  string
	}{{0, 0, "1 1"}, {1, 0, "1 1"}, {2, 0, "3 2"}, {4, 0, "3 2"}, {0, 3, "3 2"}, {2, 1, "1 1"}, {1, 2, "2 1"}, {4, 5, "5 2"}} {
		h := &fakeBroker{away: c.away}
		cfg := h.start(t)
		cfg.Replication = c.asked
		must.OK(t, newAdmin(t, cfg).Ensure(t.Context()))
		for _, topic := range events.Topics() {
			if got := h.copies[topic.Name]; got != c.want {
				t.Errorf("%d brokers are away, %d copies asked for: %s is made with %q, want %q", c.away, c.asked, topic.Name, got, c.want)
			}
		}
	}
}

// A replication factor that the cluster cannot satisfy differs from an unreachable cluster.
func TestMissingReplicasAreReported(t *testing.T) {
	cfg := config(t)
	cfg.Replication = 3
	var err error
	for limit := time.Second; !errors.Is(err, kafka.ErrTooFewBrokers) && limit < testTimeout; limit *= 4 { // a busy broker may need longer
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err = newAdmin(t, cfg).Ensure(ctx)
		cancel()
	}
	if !errors.Is(err, kafka.ErrTooFewBrokers) || errors.Is(err, kafka.ErrTopicsUnfit) ||
		!strings.Contains(err.Error(), "replication factor of 3") {
		t.Errorf("%v", err)
	}
}

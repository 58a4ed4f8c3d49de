// Headers most of TVM's sources include, compiled once by build.sh. Nothing of the auto-scheduler: it differs between the trees.
#include <tvm/arith/analyzer.h>
#include <tvm/driver/driver_api.h>
#include <tvm/node/reflection.h>
#include <tvm/relay/analysis.h>
#include <tvm/relay/expr_functor.h>
#include <tvm/relay/op_attr_types.h>
#include <tvm/relay/transform.h>
#include <tvm/target/target.h>
#include <tvm/te/operation.h>
#include <tvm/tir/schedule/schedule.h>
#include <tvm/tir/stmt_functor.h>
#include <tvm/tir/transform.h>
#include <tvm/topi/nn.h>

#include <regex>
#include <unordered_map>

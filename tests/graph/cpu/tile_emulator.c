/* The AMX instructions that generated code uses, for CPUs without them: one tile file for each thread, with every rule
   that a CPU would answer with a fault. A broken one is counted: `slipstream_emulated_faults`. */
#include <stdint.h>
#include <string.h>

static __thread struct {
  int configured;
  uint8_t rows[8];
  uint16_t bytes[8];
  uint8_t data[8][16][64];
} tiles;

int slipstream_emulated_faults, slipstream_emulated_products, slipstream_emulated_loads;

static int fault(int is_wrong) {
  if (is_wrong) __atomic_add_fetch(&slipstream_emulated_faults, 1, __ATOMIC_SEQ_CST);
  return is_wrong;
}

int slipstream_emulated_ldtilecfg(const uint8_t *table) {
  if (fault(table[0] != 1 || table[1] != 0)) return 1;
  for (int t = 0; t < 8; t++) {
    uint16_t bytes;
    memcpy(&bytes, table + 16 + 2 * t, 2);
    if (fault(table[48 + t] > 16 || bytes > 64)) return 1;
    tiles.rows[t] = table[48 + t];
    tiles.bytes[t] = bytes;
  }
  memset(tiles.data, 0, sizeof tiles.data);
  tiles.configured = 1;
  return 0;
}

int slipstream_emulated_tilerelease(void) {
  fault(!tiles.configured);
  memset(&tiles, 0, sizeof tiles);
  return 0;
}

int slipstream_emulated_tilezero(int8_t t) {
  if (fault(!tiles.configured)) return 1;
  memset(tiles.data[t], 0, sizeof tiles.data[t]);
  return 0;
}

int slipstream_emulated_tileloadd64(int8_t t, const uint8_t *from, int64_t stride) {
  if (fault(!tiles.configured)) return 1;
  __atomic_add_fetch(&slipstream_emulated_loads, 1, __ATOMIC_SEQ_CST);
  memset(tiles.data[t], 0, sizeof tiles.data[t]);
  for (int r = 0; r < tiles.rows[t]; r++) memcpy(tiles.data[t][r], from + r * stride, tiles.bytes[t]);
  return 0;
}

int slipstream_emulated_tilestored64(int8_t t, uint8_t *to, int64_t stride) {
  if (fault(!tiles.configured)) return 1;
  for (int r = 0; r < tiles.rows[t]; r++) memcpy(to + r * stride, tiles.data[t][r], tiles.bytes[t]);
  return 0;
}

static int shapes_fit(int c, int a, int b) {
  __atomic_add_fetch(&slipstream_emulated_products, 1, __ATOMIC_SEQ_CST);
  return !fault(!tiles.configured || a == b || a == c || b == c || tiles.rows[c] != tiles.rows[a] ||
                tiles.bytes[c] != tiles.bytes[b] || tiles.bytes[a] != 4 * tiles.rows[b]);
}

int slipstream_emulated_tdpbusd(int8_t c, int8_t a, int8_t b) {
  if (!shapes_fit(c, a, b)) return 1;
  int32_t(*sums)[16] = (void *)tiles.data[c];
  for (int m = 0; m < tiles.rows[c]; m++)
    for (int k = 0; k < tiles.rows[b]; k++)
      for (int n = 0; n < tiles.bytes[c] / 4; n++)
        for (int i = 0; i < 4; i++)
          sums[m][n] += (int32_t)tiles.data[a][m][4 * k + i] * (int8_t)tiles.data[b][k][4 * n + i];
  return 0;
}

static float widened(const uint8_t *half) {
  uint32_t bits = (uint32_t)(half[0] | half[1] << 8) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

int slipstream_emulated_tdpbf16ps(int8_t c, int8_t a, int8_t b) {
  if (!shapes_fit(c, a, b)) return 1;
  float(*sums)[16] = (void *)tiles.data[c];
  for (int m = 0; m < tiles.rows[c]; m++)
    for (int k = 0; k < tiles.rows[b]; k++)
      for (int n = 0; n < tiles.bytes[c] / 4; n++)
        for (int i = 0; i < 2; i++)
          sums[m][n] += widened(&tiles.data[a][m][4 * k + 2 * i]) * widened(&tiles.data[b][k][4 * n + 2 * i]);
  return 0;
}
